"""Measure applications by the newest entry of each log, so that it works while the job is down.

The number of samples follows that of tasks, outputs and partitions. Only the slowest channels of a flow are named, and only the
most frequent reasons of a task's late and bad rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from persistent_state.errors import StateError
from persistent_state.event_time.channels import Channel
from persistent_state.event_time.clocks import BEGINNING, Settings
from persistent_state.metrics import measures
from persistent_state.metrics.measures import Sample
from persistent_state.protocol import deliver, holding
from persistent_state.protocol.holding import SILENT, UNHEARD
from persistent_state.store.all_files import files_of_flow, files_of_task, with_lists
from persistent_state.store.entry import Entry
from persistent_state.store.files.base import Files
from persistent_state.store.log import Log
from persistent_state.store.named_files import Stored, count_of, length_of
from persistent_state.store.state_at import find_applications

MOST_CHANNELS = 10
"""The most channels of a flow that are named: the slowest."""

MOST_REASONS = 20
"""The most reasons of a task's late and bad rows that are named; a source of the user's may have any number."""

DELIVERING = "delivering"
"""The state of a channel that has delivered a message since the last start."""

ENDED = "ended"
"""The state of a channel that will deliver no more."""

OTHERS = "others"
"""The reason under which all others are counted."""


def of_store(files: Files) -> tuple[list[Sample], list[StateError]]:
    """Return the samples of all applications of a store, and the errors of those that can't be read."""
    samples, errors = list[Sample](), list[StateError]()
    for name in find_applications(files):
        some, error = of_application(Log(files, name))
        samples += some
        errors += [] if error is None else [error]
    return samples, errors


def of_application(log: Log, settings: Mapping[str, Settings] | None = None) -> tuple[list[Sample], StateError | None]:
    """Return the samples of an application.

    If the application is damaged, or the store does not answer or refuses to, the error comes with the samples that there are
    all the same.

    `settings`, by task, say after which time a silent channel of an input is idle; None if that is not known.
    """
    try:
        entry = log.newest()
    except StateError as error:
        return [measures.READABLE.at(0, log.application)], error
    if entry is None:
        return [], None
    samples = [*of_entry(log.application, entry, settings)]
    try:
        samples += with_lists(log, entry, lambda entry: [*of_files(log.files, log.application, entry)])
    except StateError as error:
        return [measures.READABLE.at(0, log.application), *samples], error
    return [measures.READABLE.at(1, log.application), *samples], None


def of_entry(application: str, entry: Entry, settings: Mapping[str, Settings] | None = None) -> Iterator[Sample]:
    """Yield the samples of an application by an entry of its log, but for those of its files."""
    yield measures.WRITTEN.at(_seconds(entry.time), application)
    yield measures.ENTRIES.at(entry.number, application)
    yield measures.STARTS.at(entry.epoch, application)
    yield measures.TIMELINE.at(entry.timeline, application)
    yield measures.KEPT.at(len(entry.kept), application)
    if entry.kept:
        yield measures.OLDEST_KEPT.at(_seconds(min(entry.kept)), application)
    if entry.clock != BEGINNING:
        yield measures.GLOBAL_CLOCK.at(_seconds(entry.clock), application)
    if entry.next > entry.clock:
        yield measures.NEXT_CLOCK.at(_seconds(entry.next), application)
    yield measures.INTERVAL.at(_seconds(entry.interval), application)
    if (holder := holding.holder(entry, settings)) is not None:
        yield measures.WAITS_FOR.at(1, application, holder.task, holder.input, holder.channel or "", holder.why)
    for task, outputs in sorted(entry.owes.items()):
        for output in sorted(outputs):
            yield measures.OUTPUT_OWES.at(1, application, task, output)
    for task in sorted(entry.tasks):
        yield from _of_task(application, entry, task)
    for flow in sorted({task.flow for task in entry.tasks.values() if task.active}):
        yield from _of_flow(application, entry, flow, settings)


def of_files(files: Files, application: str, entry: Entry) -> Iterator[Sample]:
    """Yield the samples of the files that an entry names, in lists too.

    Raises:
        DamagedError: A list is not what was written.
        FileNotFoundError: It was collected.
    """
    shared = {id: files_of_flow(files, flow) for id, flow in entry.flows.items()}
    whole = set[Stored]().union(*shared.values())
    for name, task in sorted(entry.tasks.items()):
        own = files_of_task(files, task)
        whole |= own
        size = length_of(own) + length_of(shared[task.flow]) + task.stored.inline
        yield measures.TASK_BYTES.at(size, application, name)
        yield measures.TASK_FILES.at(count_of(own) + count_of(shared[task.flow]), application, name)
    yield measures.STORE_BYTES.at(length_of(whole) + entry.inline, application)
    yield measures.STORE_FILES.at(count_of(whole), application)


def _of_task(application: str, entry: Entry, name: str) -> Iterator[Sample]:
    task, flow = entry.tasks[name], entry.flow_of(name)
    of_task = (application, name)
    yield measures.ACTIVE.at(task.active, *of_task, task.flow)
    if flow.visited != BEGINNING:
        yield measures.CLOCK.at(_seconds(flow.visited), *of_task)
    reasons = Counter(entry.late_counts_of(name))
    named = dict(reasons.most_common(MOST_REASONS))
    if others := reasons.total() - sum(named.values()):
        named[OTHERS] = named.get(OTHERS, 0) + others
    for reason in sorted(named):
        yield measures.LATE_AND_BAD.at(named[reason], *of_task, reason)
    if not task.active:
        # It has no clocks to be behind.
        return
    due = min(entry.clock, flow.visited)
    for output, delivery in sorted(deliver.delivered(entry, name).items()):
        if delivery.clock is not None:
            yield measures.OUTPUT_CLOCK.at(_seconds(delivery.clock), *of_task, output)
            yield measures.OUTPUT_LAG.at(_seconds(max(0, due - delivery.clock)), *of_task, output)
        yield measures.OUTPUT_BEHIND.at(delivery.behind, *of_task, output)


def _of_flow(application: str, entry: Entry, id: str, settings: Mapping[str, Settings] | None) -> Iterator[Sample]:
    flow = entry.flows[id]
    for name, source in flow.inputs.items():
        of_input = (application, id, name)
        for partition, position in source.positions.items():
            yield measures.POSITION.at(position.next, *of_input, partition)
        states = Counter(map(_state_of, source.channels.values()))
        for state in (DELIVERING, SILENT, UNHEARD, ENDED):
            yield measures.CHANNELS.at(states[state], *of_input, state)
        if (newest := _newest(source.channels.values())) is not None:
            yield measures.NEWEST.at(_seconds(newest), *of_input)
    newest = _newest(channel for source in flow.inputs.values() for channel in source.channels.values())
    for slow in holding.slow_channels(entry, id, MOST_CHANNELS, settings):
        if slow.channel is None:
            continue
        channel = flow.inputs[slow.input].channels[slow.channel]
        of_channel = (application, id, slow.input, slow.channel, slow.why)
        if newest is not None and channel.reached != BEGINNING:
            yield measures.SLOW_LAG.at(_seconds(newest - channel.reached), *of_channel)
        yield measures.SLOW_SILENCE.at(_seconds(max(0, entry.time - channel.active)), *of_channel)


def _state_of(channel: Channel) -> str:
    if channel.ended:
        return ENDED
    if channel.newest is not None:
        return DELIVERING
    return UNHEARD if channel.reached == BEGINNING else SILENT


def _newest(channels: Iterable[Channel]) -> int | None:
    """Return the newest timestamp that channels have delivered since the start, or None."""
    return max((channel.newest for channel in channels if channel.newest is not None), default=None)


def _seconds(microseconds: int) -> float:
    return microseconds / 1_000_000
