"""The hash of Spark's shuffle, beside ours: labels rest on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from persistent_state.partials.shuffle import numbers_of_partitions, spark_hash

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_numbers_are_hashed_as_spark_hashes_them(spark: SparkSession) -> None:
    numbers = [0, 1, 2, 41, 1000, 2**31 - 1, -1, -(2**31), *range(5000, 5100)]
    rows = (
        spark.createDataFrame([(number,) for number in numbers], "number int")
        .selectExpr("hash(number) AS hash")
        .collect()
    )
    assert spark_hash(np.array(numbers, np.int32)).tolist() == [row["hash"] for row in rows]


def test_spark_sends_each_label_to_a_partition_of_its_own(spark: SparkSession) -> None:
    labels = numbers_of_partitions(7)
    rows = spark.createDataFrame([(label,) for label in labels], "label int").repartition(7, "label")
    parts = rows.selectExpr("label", "spark_partition_id() AS part").collect()
    assert {row["part"]: row["label"] for row in parts} == dict(enumerate(labels))
