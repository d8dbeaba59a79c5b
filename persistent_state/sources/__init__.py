"""Sources of messages, which can be read again from a recorded position. Here is what authors of sources need."""

from persistent_state.sources.base import BadRecord, Chunk, Reach, TimeReplayableSource

__all__ = ["BadRecord", "Chunk", "Reach", "TimeReplayableSource"]
