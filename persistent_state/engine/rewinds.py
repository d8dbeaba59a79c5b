"""Plan a rewind of an application with its sources and sinks, and make it. No Spark session is needed, but for DataFrames."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from persistent_state.batch.plan import AT_MOST_ONCE, Plan
from persistent_state.engine import arrow_source, queries
from persistent_state.engine.feeds import Feed, Part
from persistent_state.engine.places import Place
from persistent_state.engine.queries import Setup
from persistent_state.engine.start_checks import Continued, check_feed
from persistent_state.errors import FencedError, InvalidInputError, StateError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.formatting import full_clock
from persistent_state.inputs import AnySource
from persistent_state.kafka.connector import KafkaConnectorSource
from persistent_state.outputs import ValuesAtClock
from persistent_state.protocol import flows, refusals
from persistent_state.protocol import rewind as protocol
from persistent_state.protocol.deliver import Due
from persistent_state.protocol.rewind import AGAIN, NONE, RETRACT, Choose, OutputPlan, ReadAgain, RewindPlan
from persistent_state.sinks.base import RecordingSink
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.sources.dataframe import DataFrameSource
from persistent_state.sources.tasks import TASK_SOURCES
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log
from persistent_state.task import PersistentTask

_AT_ONCE = 16  # sinks that go back at the same time
_logger = logging.getLogger("persistent_state")


def session() -> SparkSession:
    """Return the session that there is. It may be None, and is asked for nothing but DataFrames."""
    found: Any = SparkSession.getActiveSession()
    return found  # type: ignore[no-any-return]


def columns_of(
    task: PersistentTask, source: AnySource
) -> tuple[TimeReplayableSource | DataFrameSource, pa.Schema, pa.DataType | None]:
    """Return what `queries.columns_of` returns, without the type of an update. Only a DataFrame needs a session.

    Raises:
        InvalidInputError: The source is a DataFrame, and there is no session.
    """
    if isinstance(source, TimeReplayableSource) and not isinstance(source, KafkaConnectorSource):
        return source, source.schema, None
    spark: SparkSession | None = session()
    if spark is None:
        raise InvalidInputError(
            f"task={task.task_name}: Spark plans its source and knows its columns; make a SparkSession first."
        )
    return queries.columns_of(spark, task, source)


def plan(setup: Setup, to: int, actions: Mapping[str, str]) -> RewindPlan:
    """Return the rewind to the newest kept clock at or below a time. `actions` says by output what is not as by default.

    Raises:
        InvalidInputError: There is no such clock, an output can't go back, or a source lacks what is to be read again.
        StateError: The store or a source does not answer, or is damaged.
    """
    log, parts = Log(setup.files, setup.application), _by_output(setup.parts)
    names = {output for _, output in parts}
    for output, action in actions.items():
        if action not in (RETRACT, AGAIN):
            raise InvalidInputError(f"outputs={{{output!r}: {action!r}}}; say {RETRACT!r} or {AGAIN!r}.")
        if output not in names:
            raise InvalidInputError(
                f"outputs names {output!r}, and there is no such output; there are {', '.join(sorted(names)) or 'none'}."
            )
    planned = protocol.plan(log, to, _choose(parts, actions))
    outputs = tuple(_with_rows(each, parts) for each in planned.outputs)
    first = protocol.first_entry(log, planned)
    # What no start could go on from is not made.
    refusals.check(first, setup.plans, (), ())
    return replace(planned, outputs=outputs, reads=tuple(_reads(setup, first)))


def rewind(setup: Setup, planned: RewindPlan) -> RewindPlan:
    """Go back as planned, let each sink go back that answers, and return the plan with what was done.

    Raises:
        FencedError: The application was started, or taken back, since the plan was made. Nothing changed.
        InvalidInputError: The clock is kept no more, or an output has values above it by now. Nothing changed.
        DamagedError: The entry of the clock is not what was written. Nothing changed.
        CommitUnknownError: The store did not answer. Plan again, and look at the timeline.
    """
    if planned.application != setup.application:
        raise InvalidInputError(
            f"the plan is of application={planned.application}, not {setup.application}; plan again."
        )
    log, parts = Log(setup.files, setup.application), _by_output(setup.parts)
    entry = protocol.rewind(log, planned, writer=setup.writer, now=arrow_source.now_us())
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        outputs = [*pool.map(partial(_gone_back, entry, parts), planned.outputs)]
    return replace(planned, outputs=tuple(outputs))


def _by_output(parts: Sequence[Part]) -> dict[tuple[str, str], tuple[Plan, ValuesAtClock]]:
    """Return each output with its task's plan, by the names of both."""
    return {
        (part.plan.name, output.output_name): (part.plan, output) for part in parts for output in part.outputs.at_clock
    }


def _choose(parts: Mapping[tuple[str, str], tuple[Plan, ValuesAtClock]], actions: Mapping[str, str]) -> Choose:
    """Return what says of each output that has something above the clock what it does."""

    def choose(task: str, output: str, more: str) -> str:
        if (task, output) not in parts:
            # Its sink is not here. If the output comes back, it goes back then, or is refused.
            return RETRACT
        plan, given = parts[task, output]
        sink, action = given.place, actions.get(output, RETRACT)
        has = f"task={plan.named}: sink={output!r} {more}"
        if action == AGAIN:
            if plan.delivery == AT_MOST_ONCE:
                raise InvalidInputError(
                    f"{has}, and delivery={AT_MOST_ONCE!r} gives no clock twice; go back to a later clock."
                )
            if isinstance(sink, RecordingSink):
                raise InvalidInputError(
                    f"{has}, and by its record it would leave out clocks that come again; let it retract them, or give it a "
                    "place of its own."
                )
            return AGAIN
        if not sink.can_rewind(Place(plan, given).origin()):
            way = (
                ", or give it a place of its own"
                if isinstance(sink, RecordingSink)
                else f', or say outputs={{"{output}": "{AGAIN}"}} to have them again'
            )
            raise InvalidInputError(f"{has}, and can't take them back; go back to a later clock{way}.")
        return RETRACT

    return choose


def _with_rows(output: OutputPlan, parts: Mapping[tuple[str, str], tuple[Plan, ValuesAtClock]]) -> OutputPlan:
    """Return the plan of an output with the number of rows that go or change, if its sink tells.

    Raises:
        InvalidInputError: The sink can't go back to the clock.
    """
    if output.action != RETRACT or (output.task, output.output) not in parts:
        return output
    clock = BEGINNING if output.clock is None else output.clock
    place = Place(*parts[output.task, output.output])
    try:
        return replace(output, rows=place.sink.rows_above(clock, place.origin()))
    except InvalidInputError as error:
        raise InvalidInputError(f"task={output.task}: sink={output.output!r}: {error}") from error
    except (StateError, OSError) as error:
        _logger.warning("task=%s, sink=%r: it does not tell its rows: %s", output.task, output.output, error)
        return output


def _reads(setup: Setup, first: Entry) -> list[ReadAgain]:
    """Return what a start from this entry would read again of each source.

    Raises:
        InvalidInputError: A source has it no more, or has no positions.
    """
    found = []
    for feed in setup.feeds:
        if isinstance(feed.source, TASK_SOURCES):
            continue
        if not feed.plan.first.has_positions:
            raise InvalidInputError(
                f"{feed.plan.title}: {feed.source!r} has no positions, so nobody knows what is to be read again; name a column "
                "of positions."
            )
        found += [_read_again(feed, each) for each in check_feed(setup, feed, first, (), ())]
        if isinstance(feed.source, DataFrameSource):
            known = [name for name in feed.plan.by_name if name in first.tasks]
            for group in flows.divided(first, known) if known else ():
                found.append(ReadAgain(tuple(group.tasks), repr(feed.source), group.flow.source.next_positions))
    return found


def _read_again(feed: Feed, each: Continued) -> ReadAgain:
    ends = each.source.reach(each.positions, everything=True).ends
    count, unit = each.source.amount(each.positions, ends) or (None, "")
    return ReadAgain(tuple(each.group.tasks), repr(feed.source), each.positions, count, unit)


def _gone_back(
    entry: Entry, parts: Mapping[tuple[str, str], tuple[Plan, ValuesAtClock]], output: OutputPlan
) -> OutputPlan:
    """Let the sink of an output go back, if it has to, and answers. Return the plan of the output with what was done."""
    if output.action == NONE:
        return replace(output, is_done=True)
    if output.action == AGAIN or (output.task, output.output) not in parts:
        return output

    def write(entry: Entry, due: Due) -> None:
        raise AssertionError("a rewind gives no clock")

    plan, given = parts[output.task, output.output]
    try:
        Place(plan, given).giver(write).follow(entry.epoch)
    except FencedError:
        # A start has come, which lets it go back.
        return output
    except Exception as error:
        _logger.warning(
            "task=%s, sink=%r has yet to go back to clock=%s, and does so at the next start: %s",
            plan.named,
            output.output,
            full_clock(entry.clock),
            error,
        )
        return output
    return replace(output, is_done=True)
