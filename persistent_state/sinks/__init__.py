"""Sinks: places for the values of a task at a clock."""

from persistent_state.sinks.values import LocalValues, Values

__all__ = ["LocalValues", "Values"]
