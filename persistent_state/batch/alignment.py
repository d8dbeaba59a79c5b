"""Alignment: a channel that is far ahead of the slowest waits, so that what lies above the clock is bounded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from persistent_state.batch.plan import Plan
from persistent_state.event_time.channels import held_back, live_channels
from persistent_state.event_time.inputs import by_input, together
from persistent_state.sources.base import Reach, TimeReplayableSource
from persistent_state.store.flow_state import SourceState


def aligned_reach(
    plan: Plan,
    source: TimeReplayableSource,
    known: SourceState,
    start: Mapping[str, int],
    *,
    everything: bool,
    is_ending: bool,
    now: int,
    more: Collection[str] = (),
) -> Reach:
    """Return how far the next micro-batch of a source goes, in which the channels wait that are too far ahead.

    Args:
        plan: The plan of a task of the flow. Without alignment, or if a column has the channels, no channel waits.
        source: The source, which is open.
        known: What the log says of the source.
        start: By partition: the position that the micro-batch starts at.
        everything: As `reach` of a source takes it.
        is_ending: True if the source does not grow any more. Then no channel waits for one that is read to its end.
        now: The batch time in microseconds UTC.
        more: The partitions of which there was more when the source was asked last. None of them is silent, even if nothing can
            be read of it and no micro-batch has said so for long.
    """
    settings = plan.settings
    if settings.alignment is None or any(each.channel is not None for each in plan.inputs.values()):
        return source.reach(start, everything)
    exhausted = set[str]()
    if is_ending:
        # Ask first who has anything left.
        source.hold(())
        ends = source.reach(start, everything=True).ends
        exhausted = {name for name, end in ends.items() if end == start.get(name)}
    channels = {name: replace(each, active=now) if name in more else each for name, each in known.channels.items()}
    of_inputs = by_input(channels, plan.inputs)
    reached = dict[str, dict[str, int]]()
    for name, some in of_inputs.items():
        of = settings.of(name)
        live = live_channels(some, now, of.idle_after)
        # It brings nothing below its bound.
        reached[name] = {channel: max(each.reached, of.bounds.since) for channel, each in live.items()}
    held = held_back(together(reached), settings.alignment, exhausted)
    source.hold(held)
    return replace(source.reach(start, everything), held=held)
