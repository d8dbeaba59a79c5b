"""Spark: the only folder that imports pyspark. It plans, moves and retries; the log is the truth."""
