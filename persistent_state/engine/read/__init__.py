"""Readers for Spark of what feeds a flow: sources by Arrow, with Spark's columns, DataFrames, Kafka's connector."""
