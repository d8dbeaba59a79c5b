"""Sinks: places for the values of a task at a clock. Here is what authors of sinks need."""

from persistent_state.sinks.base import Origin, RecordingSink, Sink, arrow_batches
from persistent_state.sinks.values import LocalValues, Values

__all__ = ["LocalValues", "Origin", "RecordingSink", "Sink", "Values", "arrow_batches"]
