"""The source that is any streaming DataFrame: what Spark reads and transforms, with a timestamp and channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from persistent_state.errors import check_takes
from persistent_state.sources.base import check_timestamp_unit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Opener: TypeAlias = "Callable[[SparkSession, int | None], DataFrame]"


@dataclass(frozen=True)
class DataFrameSource:
    """A source of the rows of a streaming DataFrame: Spark's own source, stateless transformations, joins to static tables.

    A DataFrame starts over at the beginning of its source, and rows older than the clock are skipped. A function that makes the
    DataFrame can start at the clock. What it leaves out must be older than that clock, which a row without a timestamp is not.

    Without `position`, or where it is null, a row below the restart's clock may be replayed or late, and no one can know which:
    such rows are counted as "replayed or late". Without it a monoid that does not commute is refused.

    Args:
        stream: A DataFrame, or a function of (session, clock) that is called at every start. The clock to replay from is in
            microseconds UTC, or None for everything and for looking at the columns.
        timestamp: The column of event time.
        channel: The column of channels, which are ordered independently; None if all rows are one channel.
        channels: Channels that are known beforehand and hold the clock until they deliver.
        position: An integer column that rises within each channel from 0 or above, such as a Kafka offset. All rows of a
            channel come in its order.
        timestamp_unit: The unit of integer timestamps: "s", "ms", "us" or "ns".

    Raises:
        InvalidInputError: The unit is another, or the function takes other arguments.

    Example:
        >>> def stream(spark, clock):
        ...     return spark.readStream.table("clicks")
        >>> DataFrameSource(stream, timestamp="time").channel is None
        True
    """

    stream: DataFrame | Opener
    timestamp: str
    channel: str | None = None
    channels: Sequence[str] = ()
    position: str | None = None
    timestamp_unit: str | None = None

    def __post_init__(self) -> None:
        check_timestamp_unit(self.timestamp_unit)
        if callable(self.stream):
            check_takes("stream", self.stream, "spark", "clock")
