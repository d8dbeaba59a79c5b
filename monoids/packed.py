"""The codec of values that are kept as bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa

from monoids.codec import Array, Codec, Mask

T = TypeVar("T")


class Packed(Codec[T], Generic[T]):
    """Values as bytes, in Arrow binary.

    `write` makes bytes of a value that `accepts_value` accepts, `read` takes them back, and `is_fit` tells whether bytes from
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
        self._taken, self._accepts_value, self._write, self._read, self._is_fit = (
            taken,
            accepts_value,
            write,
            read,
            is_fit,
        )

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
