"""Values that are kept as bytes, and summaries of items that are such."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from monoids.base import MonoidError, Summary
from monoids.codec import Array, Codec, DataType, Mask, Rows, naming
from monoids.scalars import Scalar, family, numbers

T = TypeVar("T")
C = TypeVar("C")


class Packed(Codec[T], Generic[T]):
    """Values as bytes, in Arrow binary.

    `write` makes bytes of a value that `accepts_value` accepts, `read` takes them back, and `is_fit` says whether bytes from
    elsewhere are such.
    """

    type = pa.binary()

    def __init__(
        self,
        taken: str,
        accepts_value: Callable[[object], bool],
        write: Callable[[T], bytes],
        read: Callable[[bytes], T],
        is_fit: Callable[[bytes], bool],
    ) -> None:
        self._taken = taken
        self._accepts_value = accepts_value
        self._write, self._read = write, read
        self._is_fit = is_fit

    def check(self, values: Sequence[T | None]) -> None:
        """Refuse what is no value.

        Raises:
            MonoidError: one of them.
        """
        for value in values:
            if value is not None and not self._accepts_value(value):
                raise self.refused_value(value, self._taken)

    def to_arrow(self, values: Sequence[T | None]) -> Array:
        self.check(values)
        return pa.array([None if value is None else self._write(value) for value in values], self.type)

    def from_arrow(self, array: Array) -> list[T | None]:
        return [None if data is None else self._read(data) for data in array.to_pylist()]

    def _cast(self, column: Array) -> tuple[Array, Mask]:
        if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
            raise self.refused_column(column)
        rows = column.to_pylist()
        bad = np.array([data is not None and not self._is_fit(data) for data in rows], bool)
        return pa.array([None if out else data for data, out in zip(rows, bad, strict=True)], self.type), bad


class PackedSummary(Summary[bytes, Any, C], Generic[C]):
    """A summary of primitive items, as bytes. A column of them, or of items, is taken."""

    type = pa.binary()
    codec: Packed[bytes]

    def __init__(self, items: DataType) -> None:
        with naming(self.name):
            self.items: Scalar = Scalar(items, "ordered")
            if self.items.type == pa.binary():
                raise MonoidError("type=binary is that of its values, not of items. Use another, such as pa.string().")
        self.codec = Packed("its own values as bytes", self.is_own, bytes, bytes, self.is_own)

    @abstractmethod
    def is_own(self, value: object) -> bool:
        """Return True if this is a value of a monoid with these parameters."""

    @abstractmethod
    def _merged(self, parts: Sequence[bytes]) -> bytes:
        """Merge several values."""

    def plus(self, a: bytes, b: bytes) -> bytes:
        return self._merged([self.checked(a), self.checked(b)])

    def reduce(self, values: Array, starts: Rows) -> Array:
        data, ends = values.to_pylist(), [*starts.tolist(), len(values)]
        merged = [data[i] if j - i == 1 else self._merged(data[i:j]) for i, j in pairwise(ends)]
        return pa.array(merged, self.type)

    def checked(self, value: bytes) -> bytes:
        """Return the value if it is one of this monoid.

        Raises:
            MonoidError: It is not a value of this monoid, or has other parameters.
        """
        with naming(f"{self.name} of {self.parameters}"):
            self.codec.check([value])
        return value

    def item(self, item: Any) -> Any:
        """Return an item as the summary keeps it.

        Raises:
            MonoidError: It is not an item.
        """
        (known,) = plain(self.column_of(item))
        return known


def plain(items: Array) -> list[Any]:
    """Items as integers, floats and text: dates as days, times as microseconds, others as text."""
    kind = family(items.type)
    assert kind is not None
    if kind.name in ("text", "float", "int"):
        return list(items.to_pylist())
    present = items.is_valid().to_pylist()
    words = numbers(items).tolist() if kind.ticks else items.cast(pa.string()).to_pylist()
    return [word if is_one else None for word, is_one in zip(words, present, strict=True)]
