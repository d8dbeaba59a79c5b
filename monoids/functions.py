"""Functions under composition."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from monoids.base import Monoid
from monoids.codec import Array, DataType, Rows, naming
from monoids.nested import RecordCodec
from monoids.numeric import as_int64, close, number_of_64_bits

_FLOAT64 = pa.float64()


class Line(NamedTuple):
    """The function x -> slope * x + intercept."""

    slope: Any
    intercept: Any

    def __call__(self, x: Any) -> Any:
        return self.slope * x + self.intercept


class Affine(Monoid[Line]):
    """Affine functions one after another, as deposits and rates of interest are: the state is what all of them do together.

    >>> Affine().sum([Line(1.0, 100.0), Line(1.5, 0.0)])(0.0)
    150.0

    Its numbers are finite float64, or int64 modulo 2**64. It does not commute. In Arrow a struct of 16 bytes.
    """

    commutative = False

    def __init__(self, type: DataType = _FLOAT64) -> None:
        with naming(self.name):
            number = number_of_64_bits(type)
        self.exact = number.family.name == "int"
        self.codec: RecordCodec = RecordCodec(Line, {"slope": number, "intercept": number})
        self.type = self.codec.type

    @property
    def parameters(self) -> dict[str, Any]:
        return {"of": str(self.type.field("slope").type)}

    @property
    def zero(self) -> Line:
        return Line(1, 0) if self.exact else Line(1.0, 0.0)

    def plus(self, a: Line, b: Line) -> Line:
        """First a, then b."""
        slope, intercept = b[0] * a[0], b[0] * a[1] + b[1]
        return Line(as_int64(slope), as_int64(intercept)) if self.exact else Line(slope, intercept)

    def near(self, a: Line, b: Line) -> bool:
        return a == b if self.exact else all(map(close, a, b))

    def reduce(self, values: Array, starts: Rows) -> Array:
        slope, intercept = (np.array(field) for field in values.flatten())
        lengths = np.diff(np.append(starts, len(values)))
        with np.errstate(over="ignore", invalid="ignore"):
            # Neighbours together, then what came of them: half as many each time.
            while (lengths > 1).any():
                place = np.arange(len(slope)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
                left = np.flatnonzero(place % 2 == 0)
                is_pair = place[left] + 1 < np.repeat(lengths, (lengths + 1) // 2)
                first, second = left[is_pair], left[is_pair] + 1
                intercept[first] = slope[second] * intercept[first] + intercept[second]
                slope[first] = slope[second] * slope[first]
                slope, intercept, lengths = slope[left], intercept[left], (lengths + 1) // 2
        return self.codec.array([pa.array(slope), pa.array(intercept)], np.ones(len(starts), bool))
