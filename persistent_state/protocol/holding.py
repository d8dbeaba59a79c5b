"""Say what the global clock of an application waits for, by one entry of its log.

The global clock waits for one thing at a time: a step of a derived task, or a channel of a source. An entry does not say after
which time a channel is idle, so that a caller who knows may say so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest

from persistent_state.event_time.channels import Channel, live_channels
from persistent_state.event_time.clocks import BEGINNING, Settings
from persistent_state.event_time.inputs import named_in
from persistent_state.formatting import counted, show_clock
from persistent_state.protocol import graph
from persistent_state.store.entry import Entry
from persistent_state.store.flow_state import OUTSIDE, FlowState

STEP = "step"
"""A derived task has a step to take."""

UNREAD = "unread"
"""Nothing of a source was committed since the last start."""

UNHEARD = "never heard"
"""A channel has never delivered a message that counts."""

SILENT = "silent"
"""A channel has delivered no message that counts since the last start."""

BEHIND = "behind"
"""A channel has come no further than its newest message."""

PENDING = "pending"
"""A channel has messages that can't be read yet. An entry does not say that, so it stands in the progress alone."""

READ = "read"
"""All that was read is below the clock: it takes a newer message to move it."""

STUCK = {UNHEARD, SILENT}
"""The reasons that may stay for ever, unless the user does something."""

NOTHING = "nothing: all channels have ended or are idle"
"""The words if the global clock waits for nothing."""


@dataclass(frozen=True)
class Holder:
    """The task and the channel that the global clock waits for, and why. Clocks are microseconds UTC.

    Attributes:
        task: The task as the log has it; of a flow of several the first.
        input: The name of the task's input; "" for an only one.
        channel: The channel of the input; None if it is a task, or if no channel is known.
        why: One of the reasons of this module.
        at: The newest timestamp of the channel, or the clock to which the task has to step; None if there is neither.
        named: The task as its user knows it, if the log has another name for it.
        aside: If a channel was never heard: how many rows of the task came late or are bad. It is unknown of which channel.
    """

    task: str
    input: str
    channel: str | None
    why: str
    at: int | None
    named: str = ""
    aside: int = 0

    @property
    def words(self) -> str:
        """The same for people, as the end of a sentence on what the global clock waits for, with what lets go of a channel."""
        idle = self.why in STUCK and not (self.aside and self._is_sole)
        return f"{self.reason}{', or' if self.aside else ';'} idle_after lets it go" if idle else self.reason

    @property
    def reason(self) -> str:
        """The same for people at the end of a run, when no channel gets idle any more."""
        source = f"input={self.input}" if self.input else "its source"
        channel = f"channel={self.channel!r} of {source}" if self.channel else source
        reason = {
            STEP: f", which has yet to step to {show_clock(self.at)}",
            UNREAD: f": nothing of {source} was committed since the last start",
            UNHEARD: f": {self._unheard(channel)}",
            SILENT: f": {channel} has delivered no message that counts since the last start",
            BEHIND: f": the newest message of {channel} is of {show_clock(self.at)}",
            PENDING: f": messages of {channel} are in an open transaction, or behind one, and are read when that ends",
            READ: f": its clock is above all that was read of {source}; only a newer message moves it",
        }[self.why]
        return f"task={self.named or self.task}{reason}"

    @property
    def _is_sole(self) -> bool:
        """Return whether all rows of the task are of this channel."""
        return not self.input and not self.channel

    def _unheard(self, channel: str) -> str:
        if not self.aside:
            return f"{channel} has never delivered a message"
        rows = f"{counted(self.aside, 'row')}, none of which counts"
        delivered = f"has delivered {rows}" if self._is_sole else "has never delivered a message that counts"
        return f"{channel} {delivered}; see late_rows({self.named or self.task!r})"


def holder(entry: Entry, settings: Mapping[str, Settings] | None = None) -> Holder | None:
    """Return what the global clock of an entry waits for; None if all channels are idle or have ended.

    `settings`, by task, say after which time a silent channel of an input is idle; None if that is not known.
    """
    # The id of a flow is the name of its first task.
    active = {task.flow for task in entry.tasks.values() if task.active}
    by_clock = dict[int, list[str]]()
    for id in sorted(id for id in active if entry.flows[id].progress.holds):
        by_clock.setdefault(entry.flows[id].progress.clock, []).append(id)
    held, clock = None, BEGINNING
    # Only the channels of flows at the least clock are looked at: there may be many flows, each with many channels.
    for clock in sorted(by_clock):
        found = (slowest(entry, id, settings) for id in by_clock[clock])
        held = min((one for one in found if one is not None), key=_place, default=None)
        if held is not None:
            break
    # A flow that catches up with the global clock takes longer than any step.
    if held is not None and clock < entry.clock:
        return held
    step = min(graph.due(entry), key=lambda one: (one.since, one.flow), default=None)
    if step is None:
        return held
    return Holder(step.flow, next(iter(entry.flows[step.flow].upstream)), None, STEP, step.clock)


def among_pending(holder: Holder | None, task: str, pending: Collection[str]) -> Holder | None:
    """Return a holder with the reason that its messages can't be read yet, if it is one of these channels of a task's flow."""
    if holder is None or holder.channel is None or holder.task != task:
        return holder
    return replace(holder, why=PENDING) if named_in(holder.input, holder.channel) in pending else holder


def _place(holder: Holder) -> int:
    return BEGINNING if holder.at is None else holder.at


def sentence(holder: Holder | None, is_at_end: bool = False) -> str:
    """Return what the global clock waits for as a sentence. At the end of a run no channel gets idle any more."""
    words = NOTHING if holder is None else holder.reason if is_at_end else holder.words
    return f"The global clock waits for {words}."


def slowest(entry: Entry, task: str, settings: Mapping[str, Settings] | None = None) -> Holder | None:
    """Return the channel that holds the clock of a task's flow; None if no source feeds it, or no channel is live."""
    return next(iter(slow_channels(entry, task, 1, settings)), None)


def slow_channels(
    entry: Entry, task: str, most: int, settings: Mapping[str, Settings] | None = None
) -> Sequence[Holder]:
    """Return the channels that hold the clock of a task's flow, or will, and why: the slowest first, `most` at the most.

    It is one holder without a channel if no channel is known, or if nothing was committed since the last start. There is no
    holder if no source feeds the flow, or no channel is live.
    """
    flow = entry.flow_of(task)
    inputs = {name: source.channels for name, source in flow.inputs.items()}
    if not inputs:
        return ()
    named, first = entry.part_of.get(task, ""), next(iter(inputs))
    if flow.progress.batch == 0 and flow.progress.holds:
        return (Holder(task, first, None, UNREAD, None, named),)
    own = settings.get(task) if settings else None
    idle_after = {name: None if own is None else own.of(name).idle_after for name in inputs}
    live = {
        (name, channel): state
        for name, channels in inputs.items()
        for channel, state in live_channels(channels, entry.time, idle_after[name]).items()
    }
    # One without messages holds nothing below the bound of its input.
    edge = flow.progress.clock + entry.interval
    ahead = {place for place, state in live.items() if state.newest is None and flow.inputs[place[0]].since >= edge}
    live = {place: state for place, state in live.items() if place not in ahead} or live
    if not live:
        is_known = any(inputs.values()) or not flow.progress.holds
        return () if is_known else (Holder(task, first, None, UNHEARD, None, named, _aside(entry, task)),)
    return [
        Holder(
            task, name, channel, why, live[name, channel].newest, named, _aside(entry, task) if why == UNHEARD else 0
        )
        for (name, channel), why in _slowest(live, flow, entry.interval, most)
    ]


def _aside(entry: Entry, task: str) -> int:
    """Return how many rows of a task came late or are bad."""
    return sum(rows for reason, rows in entry.late_counts_of(task).items() if reason != OUTSIDE)


def _slowest(
    live: Mapping[tuple[str, str], Channel], flow: FlowState, interval: int, most: int
) -> list[tuple[tuple[str, str], str]]:
    """Return `most` of a flow's live channels, by the names of input and channel, and why the clock waits for each.

    The clock waits for the first; it waits for the next once that has come further.
    """
    ranks = {name: _rank(channel, flow.progress.clock, interval) for name, channel in live.items()}
    if not {BEHIND, UNHEARD} & {why for _, why in ranks.values()}:
        return [(name, READ) for name in nsmallest(most, live, key=lambda name: live[name].reached)]
    # A channel whose newest message is below the clock does not hold it: it is idle.
    waited_for = (name for name, (_, why) in ranks.items() if why != READ)
    slow = nsmallest(most, waited_for, key=lambda name: (ranks[name][0], live[name].reached))
    return [(name, ranks[name][1]) for name in slow]


def _rank(channel: Channel, clock: int, interval: int) -> tuple[int, str]:
    """Return when the clock waits for a live channel, as a number by which channels are compared, and why."""
    if channel.newest is None:
        return (1, UNHEARD) if channel.reached == BEGINNING else (2, SILENT)
    if channel.newest < clock:
        return 4, READ
    return (0 if channel.newest < clock + interval else 3), BEHIND
