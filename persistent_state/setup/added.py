"""The tasks of an application as `Application.add` was given them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from persistent_state.batch.part import named
from persistent_state.edges import parts as in_order
from persistent_state.edges.base import Edge
from persistent_state.edges.in_order.edge import InOrder
from persistent_state.event_time.inputs import INPUT
from persistent_state.inputs import AnySource, Input, Inputs
from persistent_state.kafka.connector import KafkaConnectorSource
from persistent_state.ordered import InOrderTask
from persistent_state.outputs import Output, Outputs, outputs_of, outputs_of_ordered
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.sources.dataframe import DataFrameSource
from persistent_state.task import PersistentTask


@dataclass(frozen=True)
class Added:
    """A task of the graph with its inputs and its outputs. An ordered task is several of these."""

    task: PersistentTask
    inputs: Mapping[str, Input]
    outputs: Outputs
    on_bad_row: str
    delivery: str
    without: tuple[str, ...]
    """The names of inputs of earlier starts that end."""

    @property
    def name(self) -> str:
        """The name of the task in the store."""
        return self.task.task_name

    @property
    def named(self) -> str:
        """The name by which a user knows the task; of a part of an ordered task that of the ordered one."""
        return named(self.task)

    @property
    def upstream(self) -> dict[str, Edge]:
        """The tasks that feed it, by input."""
        edges = {name: edge_of(of) for name, of in self.inputs.items()}
        return {name: edge for name, edge in edges.items() if edge is not None}

    @property
    def sources(self) -> dict[str, AnySource]:
        """The sources that feed it, by input."""
        return {name: of.source for name, of in self.inputs.items() if edge_of(of) is None}

    def source(self, read_by: Callable[[AnySource], AnySource]) -> AnySource:
        """Return the source of the task's flow: the only one, or several as one. Of a derived task it is one that feeds it.

        `read_by` returns a source as the application reads it.
        """
        if [*self.inputs] == [INPUT] or not self.sources:
            return read_by(next(iter(self.inputs.values())).source)
        sources = {name: read_by(source) for name, source in self.sources.items()}
        return Inputs({name: source for name, source in sources.items() if isinstance(source, TimeReplayableSource)})


def inputs_of(source: AnySource | Mapping[str, AnySource | Input]) -> dict[str, Input]:
    """Return the inputs of a task by name, as `add` is given them. An only one need not have a name."""
    given = source if isinstance(source, Mapping) else {INPUT: source}
    return {name: each if isinstance(each, Input) else Input(each) for name, each in given.items()}


def tasks_of(
    task: PersistentTask | InOrderTask,
    inputs: Mapping[str, Input],
    sink: Output | Sequence[Output] | None,
    on_bad_row: str,
    delivery: str,
    without: tuple[str, ...],
) -> list[Added]:
    """Return a task that a user adds as the tasks of the graph that it is.

    Raises:
        InvalidInputError: An output is none, or two of them have one name.
    """
    if not isinstance(task, InOrderTask):
        return [Added(task, inputs, outputs_of(task.task_name, sink), on_bad_row, delivery, without)]
    messages, with_states, with_rows = in_order.parts(task)
    states, rows = outputs_of_ordered(task.task_name, sink, with_rows.has_rows)
    fed = {INPUT: Input(InOrder(messages.task_name))}
    return [
        Added(messages, messages.arranged(inputs), Outputs((), ()), on_bad_row, delivery, without),
        Added(with_states, fed, states, on_bad_row, delivery, ()),
        Added(with_rows, fed, rows, on_bad_row, delivery, ()),
    ]


def edge_of(input: Input) -> Edge | None:
    """Return the edge by which another task feeds this input; None if a source does."""
    return input.source if isinstance(input.source, Edge) else None


def by_spark(source: AnySource) -> bool:
    """Return whether Spark plans the micro-batches of a source."""
    return isinstance(source, (DataFrameSource, KafkaConnectorSource))


def with_sources(added: Iterable[Added], sources: Mapping[int, AnySource]) -> tuple[Added, ...]:
    """Return the tasks on other sources, given by the id of each source of now. No input of them ends."""
    return tuple(
        replace(
            each,
            inputs={
                name: replace(of, source=sources[id(of.source)]) if name in each.sources else of
                for name, of in each.inputs.items()
            },
            without=(),
        )
        for each in added
    )


def with_output(added: Iterable[Added], output: Output) -> tuple[Added, ...]:
    """Return the tasks with this as their only output."""
    return tuple(replace(each, outputs=outputs_of(each.name, output)) for each in added)
