"""Numbers that Spark's hash sends to partitions of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def shard_labels(session: SparkSession, shards: int) -> tuple[int, ...]:
    """A number for each shard such that Spark's hash sends each to a partition of its own: they run side by side."""
    values = ", ".join(f"({i})" for i in range(shards * 20))
    found = session.sql(f"SELECT id, pmod(hash(id), {shards}) AS part FROM VALUES {values} AS t(id)").collect()
    labels = {row["part"]: row["id"] for row in found}
    spare = (row["id"] for row in found if row["id"] not in labels.values())
    return tuple(labels[part] if part in labels else next(spare) for part in range(shards))
