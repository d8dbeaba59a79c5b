"""Any streaming DataFrame as a source: what Spark reads and transforms, with a timestamp and channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Opener: TypeAlias = "Callable[[SparkSession, int | None], DataFrame]"


@dataclass(frozen=True)
class DataFrameSource:
    """The rows of a streaming DataFrame: Spark's own source, stateless transformations, joins to static tables.

    `stream` is the DataFrame, or a function that makes it, called at every start with the session and the clock to replay
    from: microseconds UTC, or None for everything, as also when only its columns are looked at. What the function leaves
    out must be older than that clock, which a row without a timestamp is not. A DataFrame by itself starts over where its
    source begins, and what is older than the clock is skipped.

    `timestamp` names the column of event time, integers of which count in `timestamp_unit`: "s", "ms", "us" or "ns". `channel`
    names the one that tells independently ordered partitions apart (none: all is one). `channels` are those known beforehand:
    they hold the clock until they deliver. `position` names an integer column that rises within each channel from 0 or above,
    such as a Kafka offset; all rows of a channel come in its order. Without it, or where it is null, nobody can tell whether a
    row below the restart's clock is replayed or late: such rows are counted as that. Without it a monoid that does not commute
    is refused.
    """

    stream: DataFrame | Opener
    timestamp: str
    channel: str | None = None
    channels: Sequence[str] = ()
    position: str | None = None
    timestamp_unit: str | None = None
