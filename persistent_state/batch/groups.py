"""The groups that rows are of, such as channels or partitions, and what each group's rows come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persistent_state.partials.sort import order_by_time

NO_ROWS = -(2**63)
"""The greatest value of a group that has no rows."""


@dataclass(frozen=True)
class Groups:
    """The groups of some rows: their names, and the number of the group that each row is of (0: all are of the first).

    What is done for each group is plain Python; what is done for its rows is done for those of all groups at once.
    """

    names: Sequence[str]
    of: NDArray[np.intp] | int = 0

    @classmethod
    def of_column(cls, column: pa.Array) -> Groups:
        """Return the groups of rows that a column of text names; a null is the empty text."""
        codes = pc.dictionary_encode(column.cast(pa.string()).fill_null(""))
        return cls(codes.dictionary.to_pylist(), codes.indices.to_numpy().astype(np.intp))

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Groups:
        """Return the groups of some of the rows. A group may have none."""
        return self if isinstance(self.of, int) else Groups(self.names, self.of[rows])

    def column(self, rows: int) -> pa.Array:
        """Return the name of the group of each of `rows` rows."""
        if isinstance(self.of, int):
            return pa.repeat(pa.scalar(self.names[0], pa.string()), rows)
        return pa.array(self.names, pa.string()).take(pa.array(self.of))

    def name(self, row: int) -> str:
        """Return the name of the group of a row."""
        return self.names[self.of if isinstance(self.of, int) else self.of[row]]

    def are(self, names: Sequence[str], rows: int) -> NDArray[np.bool_]:
        """Return which of `rows` rows are of a group with one of these names."""
        is_one = np.array([name in names for name in self.names], np.bool_)
        return np.full(rows, is_one[0]) if isinstance(self.of, int) else is_one[self.of]

    def met(self, where: NDArray[np.bool_]) -> list[str]:
        """Return the names of the groups of the rows that a mask picks."""
        if isinstance(self.of, int):
            return [*self.names] if where.any() else []
        return [self.names[i] for i in np.flatnonzero(np.bincount(self.of[where])).tolist()]

    def greatest(self, values: NDArray[np.int64]) -> list[int]:
        """Return the greatest value of each group's rows, or `NO_ROWS`. `values` has a value for each row."""
        if isinstance(self.of, int):
            return [int(values.max(initial=NO_ROWS))]
        top = np.full(len(self.names), NO_ROWS)
        np.maximum.at(top, self.of, values)
        return top.tolist()

    def least(self, values: NDArray[np.int64]) -> list[int]:
        """Return the least value of each group's rows, or 2**63 - 1. `values` has a value for each row."""
        return [~value for value in self.greatest(~values)]

    def together(self, rows: int) -> tuple[NDArray[np.intp], list[str], NDArray[np.intp]]:
        """Return `rows` rows group by group, those of a group as they came; the groups' names, and where each begins."""
        if isinstance(self.of, int) or rows == 0:
            return np.arange(rows), [*self.names][: min(rows, 1)], np.zeros(min(rows, 1), np.intp)
        order = order_by_time(self.of)
        of = self.of[order]
        begins = np.flatnonzero(np.append(True, of[1:] != of[:-1]))
        return order, [self.names[i] for i in of[begins].tolist()], begins
