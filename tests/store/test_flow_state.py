"""The channels of a source after a start, and the inputs that a flow has."""

from __future__ import annotations

from persistent_state.event_time.channels import Channel
from persistent_state.event_time.clocks import BEGINNING, END
from persistent_state.event_time.positions import Position
from persistent_state.store.flow_state import FlowProgress, FlowState, SourceState


def test_a_start_forgets_a_channel_that_was_only_named_and_keeps_one_that_has_delivered() -> None:
    source = SourceState(channels={"a": Channel(30, 0), "b": Channel(None, 0, before=5), "named": Channel(None, 0)})
    channels = source.cut_back(20, 7).channels
    assert {name: channel.active for name, channel in channels.items()} == {"a": 7, "b": 7}


def test_an_input_that_has_left_is_gone_and_one_that_stays_goes_on() -> None:
    read = SourceState(positions={"p": Position(3)})
    flow = FlowState(FlowProgress(20), {"stays": read, "leaves": read})
    inputs = flow.with_inputs({"stays": (BEGINNING, 50), "new": (50, END)}).inputs
    assert {name: (source.since, source.below) for name, source in inputs.items()} == {
        "stays": (BEGINNING, 50),
        "new": (50, END),
    }
    assert [source.positions for source in inputs.values()] == [read.positions, {}]
