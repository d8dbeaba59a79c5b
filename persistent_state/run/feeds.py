"""The sources of an application, each with the tasks that are to be fed by it together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass

from persistent_state.batch.plan import FlowPlan, Plan
from persistent_state.inputs import AnySource, Inputs, open_source, sources_of
from persistent_state.kafka.source import KafkaSource
from persistent_state.kafka.subscription import Subscription, merge_journals
from persistent_state.outputs import Outputs
from persistent_state.protocol import flows, restore
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.store import lists
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files


@dataclass(frozen=True)
class FedTask:
    """A task of an application with its source and its outputs."""

    plan: Plan
    source: AnySource
    outputs: Outputs


@dataclass(frozen=True)
class Feed:
    """A source with the tasks that are to be fed by it together, of which some may have to catch up first."""

    plan: FlowPlan
    source: AnySource


def feeds_of(parts: Sequence[FedTask]) -> list[Feed]:
    """Return the tasks by what feeds them: one source object, one delivery, one way of reading.

    Spark reads for a task with a Column. Under at-least-once delivery, what is late for some tasks is not for others.
    """
    feeds: dict[tuple[object, ...], list[FedTask]] = {}
    for part in parts:
        shared = part.plan.name if part.plan.has_names else id(part.source)
        feeds.setdefault((shared, *_way(part.plan)), []).append(part)
    return [Feed(_flow_plan(some, some[0].source), some[0].source) for some in feeds.values()]


def _flow_plan(parts: Sequence[FedTask], source: AnySource) -> FlowPlan:
    return FlowPlan(tuple(part.plan for part in parts), merge_journals if isinstance(source, Subscription) else None)


def _way(plan: Plan) -> tuple[object, ...]:
    """Return all but the source that tasks must have in common to be fed together."""
    by_column = plan.update_way == "column" and not plan.by_spark
    # An input may have a delay and an idle time of its own.
    read = plan.settings.delay, plan.settings.idle_after
    return plan.delivery, by_column, plan.takes_late, bool(plan.upstream) and plan.takes_back, *read


def equal_sources(parts: Sequence[FedTask]) -> list[list[FedTask]]:
    """Return the tasks, by what they have in common, whose sources are equal and yet are not all one object."""
    groups: list[list[FedTask]] = []
    # Several inputs are read for one task only, and what a task gives is not read as a source is.
    for part in (part for part in parts if not part.plan.has_names and not part.plan.upstream):
        group = next((group for group in groups if _are_fed_alike(group[0], part)), None)
        if group is None:
            groups.append([part])
        else:
            group.append(part)
    return [group for group in groups if any(part.source is not group[0].source for part in group)]


def _are_fed_alike(one: FedTask, other: FedTask) -> bool:
    return _way(one.plan) == _way(other.plan) and _are_equal(one.source, other.source)


def _are_equal(one: object, other: object) -> bool:
    """Return whether two sources are one object, or are of one class and hold the same."""
    if type(one) is not type(other):
        return False
    # What a source of the user's holds may have no such comparison, as a NumPy array has none.
    with suppress(Exception):
        return one is other or bool(vars(one) == vars(other))
    return False


def stays_within(source: object) -> bool:
    """Return whether a source can be kept behind another flow."""
    return isinstance(source, TimeReplayableSource) and type(source).stay_within is not TimeReplayableSource.stay_within


def flows_of(feed: Feed, entry: Entry) -> list[str]:
    """Return the ids of the flows in which the entry has the tasks of a feed, in their order."""
    return list(dict.fromkeys(entry.tasks[plan.name].flow for plan in feed.plan.tasks))


def meetings(feeds: Sequence[Feed], entry: Entry) -> Iterator[tuple[Feed, str, Mapping[str, int]]]:
    """Yield each flow that need only read on to be where another of its source is: its feed, its id, and where that is."""
    # A second start would take back more of what a task under another delivery has committed.
    if any(restore.keeps_all(plan) for feed in feeds for plan in feed.plan.tasks):
        return
    for feed in feeds:
        if stays_within(feed.source):
            for id, ends in flows.meeting_positions(entry, flows_of(feed, entry)).items():
                yield feed, id, ends


def pending(feed: Feed, entry: Entry, files: Files) -> dict[str, float]:
    """Return by partition of a feed's source, asked now: for how many seconds it has had messages that can't be read yet.

    Only Kafka has such messages.

    Raises:
        StateError: The source does not answer.
    """
    if not any(isinstance(each, KafkaSource) for each in sources_of(feed.source)):
        return {}
    flow, source = entry.flows[flows_of(feed, entry)[0]], copied(feed.source)
    open_source(source, lists.read_journals(files, flow), flow.source.known_positions)
    return {**source.reach(flow.source.next_positions, everything=True).pending}


def copied(source: object) -> TimeReplayableSource:
    """Return a copy of a source, so that what is kept for one use of it does not go where it is read."""
    assert isinstance(source, TimeReplayableSource), source
    return (
        Inputs({name: copy(each) for name, each in source.sources.items()})
        if isinstance(source, Inputs)
        else copy(source)
    )
