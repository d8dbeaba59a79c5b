"""The channels of a source after a start."""

from __future__ import annotations

from persistent_state.event_time.channels import Channel
from persistent_state.store.flow_state import SourceState


def test_a_start_forgets_a_channel_that_was_only_named_and_keeps_one_that_has_delivered() -> None:
    source = SourceState(channels={"a": Channel(30, 0), "b": Channel(None, 0, before=5), "named": Channel(None, 0)})
    channels = source.cut_back(20, 7).channels
    assert {name: channel.active for name, channel in channels.items()} == {"a": 7, "b": 7}
