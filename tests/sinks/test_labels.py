"""The labels of shards: Spark's shuffle must send each shard to a partition of its own."""

from __future__ import annotations

import numpy as np
import pytest

from persistent_state.sinks.labels import shard_labels, spark_hash


@pytest.mark.parametrize("shards", [1, 2, 7, 64, 200, 1000, 2001])
def test_each_label_goes_to_the_partition_of_its_shard(shards: int) -> None:
    labels = np.array(shard_labels(shards), np.int32)
    assert (spark_hash(labels) % shards).tolist() == list(range(shards))
