"""Python values as Arrow columns and back, strictly: nothing is rounded, parsed or guessed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

T = TypeVar("T")

# pyarrow ships no types.
Array: TypeAlias = Any
DataType: TypeAlias = Any
Mask: TypeAlias = NDArray[np.bool_]
Rows: TypeAlias = NDArray[np.int64]


class MonoidError(Exception):
    """A type, value, column or sum that does not fit a monoid. One sentence names the monoid and what did not fit."""


@contextmanager
def naming(who: str) -> Iterator[None]:
    """Let a MonoidError say whose it is."""
    try:
        yield
    except MonoidError as error:
        raise MonoidError(f"{who}: {error}") from None


class Codec(ABC, Generic[T]):
    """A codec between Python values and an Arrow column of one type.

    Attributes:
        type: the Arrow type of a value. Times are microseconds, instants are UTC.
    """

    type: DataType

    @property
    def missing(self) -> T | None:
        """The value that a null stands for when it is a part of a struct, tuple or map."""
        return None

    @abstractmethod
    def to_arrow(self, values: Sequence[T | None]) -> Array:
        """Return a column of `type`. None becomes null, which is no update.

        Raises:
            MonoidError: a value is not exactly one of `type`. "5", True and 1.0 are not integers.
        """

    @abstractmethod
    def from_arrow(self, array: Array) -> list[T | None]:
        """Return the Python values of a column of `type`. Null becomes None."""

    def cast(self, column: Array) -> tuple[Array, Mask]:
        """Return a user's column as a column of `type`, and True for each row whose value does not fit and is null.

        Taken are: integers for any number; floats and decimals for ones as wide; text, bytes, dates, times and
        datetimes of any width, unit or zone for each other; dictionaries for their values; and the same where nested.

        Raises:
            MonoidError: the column's type is not one of those. No value of it is meant as one of `type`.
        """
        if pa.types.is_dictionary(column.type):
            return self.cast(column.cast(column.type.value_type))
        if pa.types.is_null(column.type):
            return pa.nulls(len(column), self.type), np.zeros(len(column), bool)
        return self._cast(column)

    def accepts(self, type: DataType) -> bool:
        """Return True if `cast` takes columns of this type."""
        try:
            self.cast(pa.nulls(0, type))
        except MonoidError:
            return False
        return True

    @abstractmethod
    def _cast(self, column: Array) -> tuple[Array, Mask]:
        """`cast` of a column that is not a dictionary and has a type."""

    def refused_column(self, column: Array) -> MonoidError:
        return MonoidError(f"a column of {column.type} does not fit {self.type}. Convert it, or choose another monoid.")

    def refused_value(self, value: object, taken: str) -> MonoidError:
        try:
            text = repr(value)
        except Exception:
            # Such as an integer of too many digits.
            text = f"<{type(value).__name__}>"
        text = text if len(text) <= 100 else f"{text[:97]}..."
        return MonoidError(f"value={text} does not fit {self.type}, which takes {taken}.")


def valid(column: Array) -> Mask:
    """Return True for each row that is not null."""
    return ~np.asarray(column.is_null()) if column.null_count else np.ones(len(column), bool)


def null_where(column: Array, mask: Mask) -> Array:
    """Return the column with nulls in the rows of the mask."""
    return column.take(pa.array(np.arange(len(column)), mask=mask)) if mask.any() else column


def segments(starts: Rows, length: int) -> Rows:
    """Return the segment of every row."""
    return np.repeat(np.arange(len(starts)), np.diff(np.append(starts, length)))


def sort_within(segment: Rows, *keys: Array) -> Rows:
    """Return the rows in the order of (segment, *keys). Equal rows keep their order."""
    rows = pa.table([pa.array(segment), *keys], [str(i) for i in range(len(keys) + 1)])
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in rows.column_names])
    return np.asarray(order).astype(np.int64)
