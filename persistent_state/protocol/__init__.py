"""Entries of the log: who owns an application, what a commit makes of a micro-batch, what sinks are given. Free of Spark."""
