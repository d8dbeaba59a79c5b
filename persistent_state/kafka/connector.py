"""Kafka topics as a source that Spark's own connector reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from persistent_state.errors import InvalidInputError
from persistent_state.kafka.subscription import EARLIEST, TIME, Subscription

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Columns: TypeAlias = "Callable[[DataFrame], DataFrame]"


class KafkaConnectorSource(Subscription):
    """The records of Kafka topics, read by Spark's Kafka connector: a channel for each partition.

    Use it where Spark's functions are to decode the records. `KafkaSource` reads faster, and needs no connector. A task may
    change from one to the other at any start: positions and channels are the same.

    The session must have the connector (`spark.jars.packages`). Offsets that are lost stop the application at its start. With
    `fail_on_data_loss=False` a start goes on after them, writes a line to the task's journal, and logs a warning; offsets
    that are lost while the application runs end the run first.

    Args:
        topics: A name, several, or a compiled pattern that whole names match.
        bootstrap_servers: The brokers' addresses, "host:port,host:port".
        columns: A function of the connector's DataFrame, whose columns are `key`, `value` (both binary), `kafka_topic`,
            `kafka_partition`, `kafka_offset` and `kafka_timestamp`. It returns a DataFrame of rows made of these, and keeps
            topic, partition and offset.
        timestamp: The column of event time.
        timestamp_unit: "s", "ms", "us" or "ns", if that column has integers.
        starting_offsets: Where the first start begins: "earliest", "latest", or a time with a zone.
        max_offsets_per_batch: How many offsets a micro-batch reads at most.
        fail_on_data_loss: Whether offsets that were deleted before they were read stop the application.
        group: The prefix of Spark's consumer groups. The default is the names of the application and of the topics.
        options: librdkafka's options, such as those of TLS and SASL. Spark gets them under Java's names.

    Raises:
        InvalidInputError: An argument is wrong, or the package confluent_kafka is missing.

    Example:
        >>> def orders(records):
        ...     return records.selectExpr(
        ...         "CAST(value AS STRING) AS shop", "kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp"
        ...     )
        >>> KafkaConnectorSource("orders", "broker:9092", orders)
        KafkaConnectorSource('orders', 'broker:9092')
    """

    def __init__(
        self,
        topics: str | Sequence[str] | re.Pattern[str],
        bootstrap_servers: str,
        columns: Columns,
        *,
        timestamp: str = TIME,
        timestamp_unit: str | None = None,
        starting_offsets: str | datetime = EARLIEST,
        max_offsets_per_batch: int = 2_000_000,
        fail_on_data_loss: bool = True,
        group: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            topics,
            bootstrap_servers,
            timestamp=timestamp,
            timestamp_unit=timestamp_unit,
            starting_offsets=starting_offsets,
            max_offsets_per_batch=max_offsets_per_batch,
            fail_on_data_loss=fail_on_data_loss,
            group=group,
            options=options,
        )
        if hasattr(columns, "decode") or not callable(columns):
            raise InvalidInputError(
                f"{columns=} of {self!r} is not a function of Spark's DataFrame; give one. For a decoder, such as "
                "Json(schema), use KafkaSource(topics, bootstrap_servers, value=...)."
            )
        self.columns = columns
