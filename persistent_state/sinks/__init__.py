"""Sinks: places for the values of a task at a clock. Here is what authors of sinks need."""

from persistent_state.sinks.base import Origin, RecordingSink, Sink, arrow_batches

__all__ = ["Origin", "RecordingSink", "Sink", "arrow_batches"]
