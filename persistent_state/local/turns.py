"""Take a flow's turns in workers: run the parts and shards of one, commit it, and hand its running values to their outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from persistent_state.batch.packets import Advance, Answers, Descriptor
from persistent_state.batch.plan import FlowPlan, Plan
from persistent_state.batch.shard import read_values
from persistent_state.drive import local
from persistent_state.drive.local import Held, OfShard
from persistent_state.drive.turn import Part
from persistent_state.edges.output_rows import output_rows
from persistent_state.errors import StateError, TaskFailedError
from persistent_state.local.pool import Calls, DeathsError
from persistent_state.outputs import RunningValues
from persistent_state.run.commit import committing
from persistent_state.run.failures import naming
from persistent_state.run.wall_clock import new_id
from persistent_state.sinks.given_types import given_types
from persistent_state.sinks.values import LocalValues
from persistent_state.sources.base import TimeReplayableSource

Places: TypeAlias = Callable[[Mapping[str, int]], Mapping[str, str]]

MOST_PARTITIONS = 3
"""The number of partitions that an error names."""


Commit: TypeAlias = Callable[[Answers], tuple[Advance, Mapping[str, Sequence[Descriptor]]]]
"""Commits a turn, or gathers it. It returns what the flow has come to, and by task what its shards have made."""


class Turns:
    """The turns of one flow of a start. Workers know the plans of the flow's tasks and its `source`, which is not open."""

    def __init__(
        self,
        calls: Calls,
        flow: FlowPlan,
        commit: Commit,
        source: TimeReplayableSource | None,
        running: Mapping[str, Sequence[RunningValues]],
    ) -> None:
        self._calls, self._flow, self._commit = calls, flow, commit
        self._source, self._running = source, running
        self._held: Held = {}

    def take(self, parts: Sequence[Part], number: int, places: Places = lambda start: {}) -> None:
        """Take a turn with these parts.

        Args:
            parts: What the turn reads.
            number: The number that functions of running values are given with the values.
            places: Returns positions of the source in words, as `TimeReplayableSource.places` does.

        Raises:
            TaskFailedError: Code of the user raised, or workers died of a part or of a shard.
            StateError: The turn failed, and was not committed.
        """
        answers = self._answers(parts, places)
        with committing():
            after, made = self._commit(answers)
            for plan in self._flow.tasks:
                if outputs := self._running.get(plan.name):
                    _call_outputs(plan, outputs, after.clock, made[plan.name], number)

    def _answers(self, parts: Sequence[Part], places: Places) -> Answers:
        try:
            return local.run(self._flow, parts, self._source, self._held, new_id, self._calls.each, self._calls.workers)
        except DeathsError as error:
            of, remedy = _named(error.item, places), "Give the machine more memory, the source smaller micro-batches"
            raise TaskFailedError(f"{self._flow.title}: {error.sentence(of, remedy)}") from None


def _named(item: object, places: Places) -> str:
    """Return what a worker was given, as words."""
    if isinstance(item, list) and isinstance(item[0], OfShard):
        shards = [of.shard for of in item]
        return f"shard={shards[0]}, while they merged it" if len(shards) == 1 else f"{shards=}, while they merged them"
    if isinstance(item, list):
        numbers = [part.number for part in item]
        return f"part={numbers[0]} of a step" if len(numbers) == 1 else f"parts={numbers} of a step"
    assert isinstance(item, Part), item
    basis = item.basis
    if not basis.ends:
        return f"part={item.number} of a step" if basis.step is not None else f"part={item.number}"
    starts = {name: basis.positions[name].next if name in basis.positions else 0 for name in basis.ends}
    words = {name: f" ({place})" for name, place in places(starts).items()}
    named = [
        f"partition={name!r} from position {starts[name]} to {end}{words.get(name, '')}"
        for name, end in sorted(basis.ends.items())
    ]
    more = f" and {len(named) - MOST_PARTITIONS} more" if len(named) > MOST_PARTITIONS else ""
    return f"{', '.join(named[:MOST_PARTITIONS])}{more}"


def _call_outputs(
    plan: Plan, outputs: Sequence[RunningValues], clock: int, descriptors: Sequence[Descriptor], number: int
) -> None:
    """Hand the values of the keys that a turn changed to functions; of windows those that are open at the clock."""
    shown = output_rows(plan)
    schema = given_types(shown.schema)
    read = (read_values(plan.files, each.values, plan.layout, clock) for each in descriptors if each.values)
    tables = [shown.of(table).cast(schema) for table in read]
    values = LocalValues.of(pa.concat_tables([schema.empty_table(), *tables]))
    for output in outputs:
        function: Any = output.function
        with naming(f"task={plan.name}: a function of RunningValues", StateError):
            function(values, number)
