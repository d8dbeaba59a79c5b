"""Choose the numbers that Spark's shuffle sends to each of its partitions, by Spark's hash."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_SEED = 42
"""The seed of Spark's hash."""


def numbers_of_partitions(count: int) -> tuple[int, ...]:
    """Return a number for each of `count` partitions: a shuffle by a column of type int sends the i-th to partition i."""
    candidates = 16 * count
    while True:
        numbers = np.arange(candidates, dtype=np.int32)
        partitions, first = np.unique(spark_hash(numbers) % count, return_index=True)
        if len(partitions) == count:
            return tuple(numbers[first].tolist())
        candidates *= 2


def labels_of_shards(shards: int, slots: int) -> tuple[int, ...]:
    """Return the label of each shard. A slot's shards have one label, and Spark sends that to a partition of its own."""
    numbers = numbers_of_partitions(slots)
    return tuple(numbers[((shard + 1) * slots - 1) // shards] for shard in range(shards))


def spark_hash(numbers: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return what the function `hash` of Spark SQL makes of a column of type int.

    It is Murmur3 for 32 bits, by Austin Appleby, of the number's four bytes.
    """
    with np.errstate(over="ignore"):
        mixed = _rotated(numbers.astype(np.uint32) * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        hashed = _rotated(mixed ^ np.uint32(_SEED), 13) * np.uint32(5) + np.uint32(0xE6546B64)
        hashed ^= np.uint32(4)
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            hashed = (hashed ^ (hashed >> np.uint32(shift))) * np.uint32(factor)
        hashed ^= hashed >> np.uint32(16)
    return hashed.view(np.int32)


def _rotated(bits: NDArray[np.uint32], count: int) -> NDArray[np.uint32]:
    return (bits << np.uint32(count)) | (bits >> np.uint32(32 - count))
