"""This machine as an engine: an application runs in this process and its workers, without Spark and without Java."""
