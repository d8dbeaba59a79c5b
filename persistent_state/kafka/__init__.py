"""Kafka topics as sources and as sinks."""
