"""Rows that are needed no more: of windows that have closed, of sessions that have ended, of ids that are forgotten."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.partials.layout import Layout, as_numpy, has_id


def without_expired(table: pa.Table, layout: Layout, floor: int, is_all: bool) -> pa.Table:
    """Return the rows that have not expired by the clock `floor`; `is_all` says that all rows of each key are there.

    A message that has an id is needed until that is forgotten, as its copies may still come.
    """
    if layout.kind.expires_by_key and not is_all:
        return table
    expiry = layout.kind.expiry(table, layout)
    if expiry is None:
        return table
    needed = expiry > floor
    return table.filter(pa.array(needed if layout.once is None else needed | has_id(table)))


def fading(table: pa.Table, layout: Layout) -> NDArray[np.int64] | None:
    """Return the clock by which each row has expired, or is no single message any more; None if none ever does."""
    expiry = layout.kind.expiry(table, layout)
    if layout.once is None:
        return expiry
    expiry = np.full(len(table), np.iinfo(np.int64).max) if expiry is None else expiry
    forgotten = as_numpy(table, "time") + (layout.once.horizon + 1)
    return np.where(has_id(table), forgotten, expiry)
