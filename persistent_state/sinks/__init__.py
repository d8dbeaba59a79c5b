"""Sinks: places for the values of a task at a clock."""
