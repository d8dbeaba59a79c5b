"""The numbers that Spark's shuffle sends to each partition. `tests/spark/test_shuffle.py` asks Spark itself."""

from __future__ import annotations

import numpy as np
import pytest

from persistent_state.partials.shuffle import labels_of_shards, numbers_of_partitions, spark_hash


def test_numbers_are_hashed_as_spark_hashes_them() -> None:
    """What `SELECT hash(number)` gives in Spark."""
    numbers = np.array([0, 1, -1, 2**31 - 1], np.int32)
    assert spark_hash(numbers).tolist() == [933211791, -559580957, -1604776387, 133916647]


@pytest.mark.parametrize("count", [1, 2, 7, 64, 200, 1000, 2001])
def test_each_number_goes_to_its_partition(count: int) -> None:
    numbers = np.array(numbers_of_partitions(count), np.int32)
    assert (spark_hash(numbers) % count).tolist() == list(range(count))


@pytest.mark.parametrize(
    ("shards", "slots", "shares"), [(5, 5, [1] * 5), (5, 2, [2, 3]), (16, 3, [5, 5, 6]), (4, 1, [4])]
)
def test_shards_are_shared_among_slots_evenly_and_in_their_order(shards: int, slots: int, shares: list[int]) -> None:
    labels = labels_of_shards(shards, slots)
    assert labels == tuple(
        label for label, share in zip(numbers_of_partitions(slots), shares, strict=True) for _ in range(share)
    )
