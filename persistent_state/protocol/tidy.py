"""Let an entry name no more than a start needs: few spans of positions, and few files of late and bad rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from persistent_state.store import late_rows
from persistent_state.store.entry import Entry
from persistent_state.store.flow_state import FlowState, LateRows
from persistent_state.store.log import Log
from persistent_state.store.named_files import path_of


def tidy_flow(log: Log, entry: Entry, id: str, new_id: Callable[[], str]) -> Entry:
    """Return the entry when a flow and its tasks name no more than a start needs."""
    flow = entry.flows[id]
    restart = min(entry.clock, flow.progress.clock)
    source = without_old_spans(entry, flow).source

    def settle(rows: LateRows, name: str) -> LateRows:
        if len(rows.sides) <= late_rows.MANY:
            return rows
        replays = flow.with_steps(source.replays_from(restart))
        path = partial(path_of, log.application, name, entry.epoch, flow.progress.batch)
        page, joined = partial(path, "pages", new_id), partial(path, "sides", new_id)
        return late_rows.settle(log.files, rows, replays, entry.epoch, restart, page, joined)

    tasks = {
        name: replace(task, late_rows=settle(task.late_rows, name)) if task.late_rows.sides else task
        for name, task in entry.tasks_of(id).items()
    }
    flow = replace(flow.with_source(source), late_rows=settle(flow.late_rows, id))
    return replace(entry.with_flow(id, flow), tasks={**entry.tasks, **tasks})


def without_old_spans(entry: Entry, flow: FlowState) -> FlowState:
    """Return a flow of an entry without the spans that no start has to read again.

    What a start may have to read again must never grow, as it would where spans on both sides of its clock are joined.
    """
    return flow.with_source(flow.source.without_old_spans(min(entry.clock, flow.progress.clock)))
