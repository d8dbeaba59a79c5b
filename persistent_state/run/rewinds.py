"""Plan a rewind of an application with its sources and sinks, and make it. No engine is needed, but for DataFrames."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import TypeAlias
from weakref import WeakSet

import pyarrow as pa

from persistent_state.batch.plan import AT_MOST_ONCE, FlowPlan, Plan
from persistent_state.drive.output_sink import OutputSink
from persistent_state.errors import FencedError, InvalidInputError, StateError, StoreRefusedError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.formatting import Clock, full_clock
from persistent_state.inputs import AnySource, check_again
from persistent_state.kafka.connector import KafkaConnectorSource
from persistent_state.outputs import ValuesAtClock
from persistent_state.protocol import flows, refusals
from persistent_state.protocol import rewind as protocol
from persistent_state.protocol.deliver import Due
from persistent_state.protocol.fates import REBUILT, Fates, Words, decide
from persistent_state.protocol.naming import clock_named
from persistent_state.protocol.rewind import Choice, Choose
from persistent_state.protocol.rewind_plan import AGAIN, NONE, REFUSE, RETRACT, OutputPlan, ReadAgain, RewindPlan
from persistent_state.run.feeds import FedTask, Feed
from persistent_state.run.setup import Engine, Setup
from persistent_state.run.start_checks import Continued, check_feed, copied
from persistent_state.run.wall_clock import now_us
from persistent_state.sinks.base import RecordingSink
from persistent_state.sinks.function import Function
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.sources.dataframe import DataFrameSource
from persistent_state.sources.tasks import TaskSource
from persistent_state.store import lists
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files
from persistent_state.store.log import Log
from persistent_state.store.runs import named_by_newest
from persistent_state.store.state_at import newest_entry
from persistent_state.task import PersistentTask

SINK_SECONDS = 60.0
"""The time that a plan waits for all sinks to tell their rows, and a rewind for all to go back. A sink that takes longer goes
back at the next start, if it has not by then."""

LAST_SECONDS = 10.0
"""The time that the end of a process gives to sinks that have yet to go back."""

_threads: WeakSet[threading.Thread] = WeakSet()
"""The threads in which sinks tell their rows or go back."""

_logger = logging.getLogger("persistent_state")

ByOutput: TypeAlias = "Mapping[tuple[str, str], tuple[Plan, ValuesAtClock]]"
"""Each output with its task's plan, by the names of both."""


def is_planned_by_spark(source: AnySource) -> bool:
    """Return whether only Spark knows the columns of a source."""
    return isinstance(source, (DataFrameSource, KafkaConnectorSource))


def columns_of(
    engine: Engine | None, task: PersistentTask, source: AnySource
) -> tuple[TimeReplayableSource | DataFrameSource, pa.Schema, pa.DataType | None]:
    """Return what `Engine.columns_of` returns, without the type of an update. Only a DataFrame needs an engine.

    Raises:
        InvalidInputError: The source is a DataFrame, and there is no engine.
    """
    if isinstance(source, TimeReplayableSource) and not is_planned_by_spark(source):
        return source, source.schema, None
    if engine is None:
        raise InvalidInputError(
            f"task={task.task_name}: Spark plans its source and knows its columns; make a SparkSession first."
        )
    return engine.columns_of(task, source)


def plan(setup: Setup, to: Clock, actions: Mapping[str, str]) -> RewindPlan:
    """Return the rewind to the newest kept clock at or below a time, or to one that is kept by this name.

    `actions` says by output what is not as by default. An output that can't go back has the action `REFUSE`, so that the plan
    shows all of them.

    Raises:
        InvalidInputError: There is no such clock, or a source lacks what is to be read again.
        StateError: The store or a source does not answer, or is damaged.
    """
    log, parts = Log(setup.files, setup.application), _by_output(setup.parts)
    choose, at = _choose(parts, _by_named(parts, actions)), clock_named(log, to)
    asked = _asked(parts, newest_entry(setup.files, setup.application))
    last = {(each.task, each.output): each.furthest for each in asked if each.action != REFUSE}
    planned = _with_refusals(protocol.plan(log, at, choose, last), asked)
    planned = _with_what_is_left_out(setup, parts, planned)
    first = protocol.first_entry(log, planned)
    # What no start could go on from is not made.
    table = _fates(setup, first)
    refusals.check(table, first, setup.plans)
    count = partial(_with_rows, first, parts)
    reads = _reads(setup, table, first, newest_entry(setup.files, setup.application))
    outputs = _at_once(count, planned.outputs, "tell its rows", "The plan is made without them.")
    rebuilt = tuple(task.name for task in setup.plans if table.of[task.name].kind == REBUILT)
    return replace(planned, outputs=tuple(outputs), reads=tuple(reads), rebuilt=rebuilt)


def _asked(parts: ByOutput, newest: Entry) -> list[OutputPlan]:
    """Ask each sink how far it is, and return plans whose `furthest` is the answer.

    It is None of a sink that does not answer or does not say, if it can go back: it may have more than the log knows. It is
    `BEGINNING` where the log's word has to do. A sink that has followed a rewind of which the log does not know is refused.
    """

    def ask(output: OutputPlan) -> OutputPlan:
        plan, given = parts[output.task, output.output]
        place = OutputSink(plan, given)
        if not isinstance(place.sink, RecordingSink):
            return output
        try:
            last = place.sink.last_clock(place.origin(newest.timeline))
        except FencedError:
            why = (
                f"task={plan.named}: sink={output.output!r} has values of a timeline to which application={plan.application} "
                "has never come: the store was brought back from a copy from before a rewind; bring back a newer one, or give "
                "it a place of its own"
            )
            return replace(output, action=REFUSE, furthest=None, why=why)
        except (StateError, OSError) as error:
            if isinstance(error, InvalidInputError) and not isinstance(error, StoreRefusedError):
                # The start, or the count of its rows, says what is wrong with the place.
                return replace(output, furthest=BEGINNING)
            _logger.warning("task=%s, sink=%r: it does not say how far it is: %s", plan.named, output.output, error)
            return output
        return output if last is None else replace(output, furthest=last)

    outputs = []
    for (task, output), (plan, given) in parts.items():
        place = OutputSink(plan, given)
        known = None if place.sink.can_rewind(place.origin()) else BEGINNING
        outputs.append(OutputPlan(task, output, NONE, known, None))
    return _at_once(ask, outputs, "say how far it is", "It goes back, if it can.")


def _with_refusals(planned: RewindPlan, asked: Sequence[OutputPlan]) -> RewindPlan:
    """Return a plan in which the outputs that are refused by their sinks are refused."""
    refused = {(each.task, each.output): each for each in asked if each.action == REFUSE}
    outputs = (refused.pop((each.task, each.output), each) for each in planned.outputs)
    return replace(planned, outputs=(*outputs, *refused.values()))


def _fates(setup: Setup, first: Entry) -> Fates:
    """Return what a start from the first entry of a timeline would make of each task."""
    return decide(first, [feed.plan for feed in setup.feeds], Words())


def _with_what_is_left_out(setup: Setup, parts: ByOutput, planned: RewindPlan) -> RewindPlan:
    """Return a plan that tells which of its tasks and outputs the application lacks."""
    here = {plan.name for plan in setup.plans}
    outputs = (
        replace(each, is_left_out=(each.task, each.output) not in parts and each.action != NONE)
        for each in planned.outputs
    )
    return replace(planned, outputs=tuple(outputs), left_out=tuple(name for name in planned.tasks if name not in here))


def check_sources(setup: Setup, planned: RewindPlan) -> None:
    """Refuse a plan if a source has lost since what is to be read again. A plan that is void by now is left to `rewind`.

    Raises:
        InvalidInputError: A source has, the clock is kept no more, or an output has values above it by now.
        StateError: The store or a source does not answer, or is damaged.
    """
    newest = newest_entry(setup.files, setup.application)
    if (planned.application, planned.epoch) == (setup.application, newest.epoch):
        first = protocol.first_entry(Log(setup.files, setup.application), planned)
        _reads(setup, _fates(setup, first), first, newest)


def rewind(setup: Setup, planned: RewindPlan) -> RewindPlan:
    """Go back as planned, let each sink go back that answers, and return the plan with what was done.

    Raises:
        FencedError: The application was started, or taken back, since the plan was made. Nothing changed.
        InvalidInputError: An output can't go back, the clock is kept no more, or an output has values above it by now. Nothing
            changed.
        DamagedError: The entry of the clock is not what was written. Nothing changed.
        CommitUnknownError: The store did not answer. Plan again, and look at the timeline.
    """
    if planned.application != setup.application:
        raise InvalidInputError(
            f"the plan is of application={planned.application}, not {setup.application}; plan again."
        )
    log, parts = Log(setup.files, setup.application), _by_output(setup.parts)
    entry = protocol.rewind(log, planned, writer=setup.writer, now=now_us())
    go_back = partial(_gone_back, entry, parts)
    _logger.info(
        "application=%s is back at clock=%s, in timeline %d", log.application, full_clock(entry.clock), entry.timeline
    )
    outputs = _at_once(go_back, planned.outputs, "go back", "If it has not by then, it does so at the next start.")
    return replace(planned, outputs=tuple(outputs), is_made=True)


def _at_once(
    work: Callable[[OutputPlan], OutputPlan], outputs: Sequence[OutputPlan], must: str, otherwise: str
) -> list[OutputPlan]:
    """Do this for all outputs at the same time, and wait for them for `SINK_SECONDS` at most.

    An output whose sink takes longer stays as it was. A warning tells what the sink `must` do, and what comes `otherwise`.
    """

    def run(output: OutputPlan, future: Future[OutputPlan]) -> None:
        try:
            future.set_result(work(output))
        except BaseException as error:
            # Panics of libraries that are written in Rust are not Exceptions.
            future.set_exception(error)

    futures: list[Future[OutputPlan]] = [Future() for _ in outputs]
    for output, future in zip(outputs, futures, strict=True):
        # The end of the process does not wait for a thread of this kind for ever.
        name = f"persistent-state {output.task} {output.output} rewinds"
        thread = threading.Thread(target=run, args=(output, future), name=name, daemon=True)
        _threads.add(thread)
        thread.start()
    done, _ = wait(futures, SINK_SECONDS)
    for output, future in zip(outputs, futures, strict=True):
        if future not in done:
            _logger.warning(
                "task=%s, sink=%r: the sink did not %s within %g s. %s",
                output.task,
                output.output,
                must,
                SINK_SECONDS,
                otherwise,
            )
    return [future.result() if future in done else output for output, future in zip(outputs, futures, strict=True)]


@atexit.register
def _await_sinks() -> None:
    """Wait for sinks that have yet to go back, for `LAST_SECONDS` at most.

    If Python took itself down while they are within a library that is not written in Python, they would end the process by a
    signal as soon as they come back.
    """
    until = time.monotonic() + LAST_SECONDS
    for thread in [*_threads]:
        thread.join(max(0.0, until - time.monotonic()))


def _by_output(parts: Sequence[FedTask]) -> ByOutput:
    """Return each output with its task's plan, by the names of both."""
    return {
        (part.plan.name, output.output_name): (part.plan, output) for part in parts for output in part.outputs.at_clock
    }


def _names(parts: ByOutput) -> dict[tuple[str, str], str]:
    """Return the name by which a user says each output: its own, and where several tasks have it, with the task's."""
    tasks = Counter(output for _, output in parts)
    return {
        (task, output): output if tasks[output] == 1 else f"{plan.named}/{output}"
        for (task, output), (plan, _) in parts.items()
    }


def _by_named(parts: ByOutput, actions: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """Return what is said of outputs, by the names of the task and of the output. A name may have its task's before it.

    Raises:
        InvalidInputError: A name is of no output, or of several, or something else is said than what there is.
    """
    found: dict[tuple[str, str], str] = {}
    names = _names(parts)
    for name, action in actions.items():
        if action not in (RETRACT, AGAIN):
            raise InvalidInputError(f"outputs={{{name!r}: {action!r}}}; say {RETRACT!r} or {AGAIN!r}.")
        whole = [
            each
            for each, (plan, _) in parts.items()
            if name in {f"{task}/{each[1]}" for task in (plan.name, plan.named)}
        ]
        several = whole or [each for each in parts if name == each[1]]
        if not several:
            raise InvalidInputError(
                f"outputs names {name!r}, and there is no such output; there are "
                f"{', '.join(sorted(names.values())) or 'none'}."
            )
        if len(several) > 1:
            raise InvalidInputError(
                f"outputs names {name!r}, which several tasks have; say {' or '.join(repr(names[each]) for each in several)}."
            )
        found[several[0]] = action
    return found


def _choose(parts: ByOutput, actions: Mapping[tuple[str, str], str]) -> Choose:
    """Return what says of each output that has something above the clock what it does, or why it can't go back."""
    names = _names(parts)

    def choose(task: str, output: str, more: str) -> Choice:
        if (task, output) not in parts:
            # Its sink is not here. If the output comes back, it goes back then, or is refused.
            return Choice(RETRACT)
        plan, given = parts[task, output]
        sink, action = given.place, actions.get((task, output), RETRACT)
        has_record, is_once = isinstance(sink, RecordingSink), plan.delivery == AT_MOST_ONCE
        again_by = ""
        if action == AGAIN and is_once:
            why = f"and delivery={AT_MOST_ONCE!r} gives no clock twice; go back to a later clock"
        elif action == AGAIN and has_record:
            why = (
                "and by its record it would leave out clocks that come again; let it retract them, or give it a place of its "
                "own"
            )
        elif action == RETRACT and not sink.can_rewind(OutputSink(plan, given).origin()):
            way = ", or give it a place of its own" if has_record else ""
            way = ", or give it on_rewind by ValuesAtClock" if isinstance(sink, Function) else way
            why = f"and can't take them back; go back to a later clock{way}"
            again_by = "" if has_record or is_once else names[task, output]
        else:
            return Choice(action)
        return Choice(REFUSE, f"task={plan.named}: sink={output!r} {more}, {why}", again_by)

    return choose


def _with_rows(first: Entry, parts: ByOutput, output: OutputPlan) -> OutputPlan:
    """Return the plan of an output with the number of rows that go or change by the first entry, if its sink tells.

    A sink that can't go back to the clock is refused.
    """
    owed = first.owed(output.task, output.output)
    if owed is None or (output.task, output.output) not in parts:
        return output
    plan, given = parts[output.task, output.output]
    place = OutputSink(plan, given)
    try:
        return replace(output, rows=place.sink.rows_above(owed.clock, place.origin()))
    except (StateError, OSError) as error:
        # A place that refuses its credentials says nothing of the clock: the sink goes back when they are right again.
        if isinstance(error, InvalidInputError) and not isinstance(error, StoreRefusedError):
            why = f"task={plan.named}: sink={output.output!r}: {error}"
            return replace(output, action=REFUSE, why=why.removesuffix("."))
        _logger.warning("task=%s, sink=%r: it does not tell its rows: %s", output.task, output.output, error)
        return output


def _reads(setup: Setup, table: Fates, first: Entry, newest: Entry) -> list[ReadAgain]:
    """Return what a start from the first entry of a timeline would read again of each source.

    What was read since the clock stands in the journals of the newest entry.

    Raises:
        InvalidInputError: A source has it no more, or has no positions.
    """
    found = []
    for feed in setup.feeds:
        source = feed.source
        if isinstance(source, TaskSource):
            continue
        if not all(of.has_positions for of in feed.plan.first.inputs.values()):
            raise InvalidInputError(
                f"{feed.plan.title}: {source!r} has no positions, so nobody knows what is to be read again; name a column "
                "of positions."
            )
        if not isinstance(source, DataFrameSource):
            _check_again(setup.files, feed.plan, source, first, newest)
        try:
            continued = check_feed(setup, feed, first, table)
        except InvalidInputError as error:
            # It speaks of a start.
            raise InvalidInputError(f"no start could go on from clock={full_clock(first.clock)}: {error}") from error
        found += [_read_again(feed, each) for each in continued]
        if isinstance(source, DataFrameSource):
            known = [name for name in feed.plan.by_name if name in first.tasks]
            for group in flows.divided(first, known) if known else ():
                found.append(ReadAgain(tuple(group.tasks), repr(source), group.flow.source.next_positions))
    return found


def _check_again(
    files: Files, flow: FlowPlan, source: TimeReplayableSource | KafkaConnectorSource, first: Entry, newest: Entry
) -> None:
    """Refuse to go back if a source lacks something that it has found since the clock.

    Raises:
        InvalidInputError: A source does.
    """
    groups = flows.divided(first, [name for name in flow.by_name if name in first.tasks])
    later = flows.divided(newest, [name for name in flow.by_name if name in newest.tasks])
    for group in groups:
        positions = group.flow.with_inputs(flow.first.bounds).source.next_positions
        with named_by_newest():
            journals = lists.read_journals(files, group.flow)
            for other in later:
                check_again(copied(source), positions, journals, lists.read_journals(files, other.flow))


def _read_again(feed: Feed, each: Continued) -> ReadAgain:
    ends = each.source.reach(each.positions, everything=True).ends
    count, unit = each.source.amount(each.positions, ends) or (None, "")
    begins = each.source.places(each.positions)
    return ReadAgain(tuple(each.group.tasks), repr(feed.source), each.positions, count, unit, begins)


def _gone_back(entry: Entry, parts: ByOutput, output: OutputPlan) -> OutputPlan:
    """Let the sink of an output go back, if it has to, and answers. Return the plan of the output with what was done."""
    if output.action == NONE:
        return replace(output, is_done=True)
    if output.action == AGAIN or (output.task, output.output) not in parts:
        return output

    def write(entry: Entry, due: Due) -> None:
        raise AssertionError("a rewind gives no clock")

    plan, given = parts[output.task, output.output]
    try:
        OutputSink(plan, given).giver(Log(plan.files, plan.application), write, now_us).follow(entry.epoch)
    except FencedError:
        # A start has come, which lets it go back.
        return output
    except BaseException as error:
        # Panics of libraries that are written in Rust are not Exceptions.
        _logger.warning(
            "task=%s, sink=%r has yet to go back, and does so at the next start: %s", plan.named, output.output, error
        )
        return output
    return replace(output, is_done=True)
