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

_LOGINS = {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}
"""The ways to log in that librdkafka's options can name for Java's clients."""

_ONLY_LIBRDKAFKA = {
    "sasl.kerberos.keytab",
    "sasl.kerberos.principal",
    "ssl.ca.certificate.stores",
    "ssl.crl.location",
    "ssl.curves.list",
    "ssl.engine.id",
    "ssl.engine.location",
    "ssl.providers",
    "ssl.sigalgs.list",
}
"""Options of TLS and SASL that Java's clients don't have. They would be passed over, and the connection be another one."""

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
        options: librdkafka's options, such as those of TLS and SASL. Spark gets them under Java's names. Functions, OAuth and
            Kerberos can't be given to Spark.

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
        self._check_options()
        self.columns = columns

    def _check_options(self) -> None:
        """Refuse options that Java's clients can't be given.

        Raises:
            InvalidInputError: There are such options.
        """
        mechanism = {self.options.get(name, "PLAIN") for name in ("sasl.mechanism", "sasl.mechanisms")}
        unfit = {name for name, value in self.options.items() if callable(value) or "oauthbearer" in name}
        unfit |= _ONLY_LIBRDKAFKA & self.options.keys()
        unfit |= {f"sasl.mechanism={one}" for one in mechanism if str(one).upper() not in _LOGINS}
        if unfit:
            raise InvalidInputError(
                f"options={sorted(unfit)} of {self!r} are librdkafka's alone, and Spark's connector has Java's clients; use "
                "KafkaSource, or leave them out."
            )
