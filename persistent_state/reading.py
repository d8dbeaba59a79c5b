"""Read a task's state at a clock, in one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from persistent_state.formatting import Clock
from persistent_state.open_state import Monoids, open_store
from persistent_state.task import BaseTask


def read_state(
    store: str,
    application: str,
    task: BaseTask | str,
    clock: Clock | None = None,
    *,
    monoids: Monoids = (),
    presented: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> pa.Table:
    """Return a task's state at a clock, a row per key.

    Nothing of the store is executed. The monoid is that of `task`, and must be the one that the store was written with. If the
    task is only named, the monoid is one of the `monoids` package or of the argument `monoids`: the one whose identity the log
    has.

    Args:
        store: The store's folder or URL.
        application: The application's name.
        task: The task, or its name.
        clock: One of `OpenApplication.clocks`, or the name of a kept clock; by default the newest, which is the global clock.
        monoids: Your own monoids and aggregators, where the task is only named.
        presented: True for values as outputs show them: as a Summary or an Aggregator presents them. If the task is only named,
            give its Aggregator in `monoids`.
        storage_options: What fsspec needs to open the store.

    Returns:
        The key columns and `value`, in no particular order. A `WindowState` gives a row for each key and window that is open at
        the clock and holds a message; `window_start` and `window_end`, timestamps in UTC, stand before `value`.

    Raises:
        InvalidInputError: There is no such application or task, the clock is not retained, the monoid is not known, or its
            values are not of the type that is presented.
        DamagedError: A file is not what was written.
        TaskFailedError: What presents the values raised.

    Example:
        >>> totals = read_state("tests/fixtures/store-v1", "app", "Totals", clock=160)
        >>> totals.column_names
        ['shop', 'item', 'value']
        >>> [row["value"] for row in totals.to_pylist() if (row["shop"], row["item"]) == ("Bergen", 1)]
        [{'sales': 4, 'total': 488}]
    """
    found = open_store(store, storage_options=storage_options).application(application)
    return found.task(task, monoids=monoids, presented=presented).at(clock).to_arrow()
