"""Run Spark's Kafka connector for a `KafkaConnectorSource`, from the offsets in the log."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from persistent_state.engine.spark import connect
from persistent_state.errors import InvalidInputError
from persistent_state.kafka.connector import KafkaConnectorSource
from persistent_state.kafka.subscription import COMMITTED, GAP, OFFSET, PARTITION, TIME, TOPIC
from persistent_state.kafka.topics import PATIENCE
from persistent_state.redact import without_secrets
from persistent_state.sources.dataframe import DataFrameSource

CHANNEL = "kafka_channel"
_HIDDEN, _HIDDEN_BY_DEFAULT, _OF_KAFKA = "spark.sql.redaction.options.regex", "(?i)url", "^kafka[.]"
_logger = logging.getLogger("persistent_state")


def frame_for_columns(source: KafkaConnectorSource) -> DataFrameSource:
    """Return topics as a DataFrame, to look at its columns. No broker is asked."""
    return _frame(source, {"startingOffsets": "earliest"}, (), {})


def frame_from(
    source: KafkaConnectorSource, journal: Sequence[str], known: Mapping[str, int], start: Mapping[str, int]
) -> tuple[DataFrameSource, tuple[str, ...]]:
    """Return topics as a DataFrame that begins at `start`, and the journal lines for the first micro-batch to write.

    Raises:
        InvalidInputError: Offsets or topics that are to be read are not there any more.
        StoreUnavailableError: No broker answers.
    """
    # A copy, because a source is opened once, and this one may be opened again.
    subscription = copy(source)
    subscription.open(journal, known)
    lines = subscription.reach(start, everything=False).journal
    offsets: dict[str, dict[str, int]] = {}
    names = {}
    for name, partition in subscription.partitions.items():
        begin = start.get(name, partition.begin)
        if gap := partition.gap(begin, name not in start):
            # Spark reports no gap, and no row stands for it.
            _logger.warning("%r goes on after lost offsets: %s", source, gap)
            lines = (*lines, json.dumps({GAP: gap}))
        offsets.setdefault(partition.topic, {})[str(partition.number)] = max(begin, partition.first)
        names[partition.topic, partition.number] = name
    options = {"startingOffsets": json.dumps(offsets) if offsets else "earliest"}
    return _frame(source, options, tuple(names.values()), names), lines


def _frame(
    source: KafkaConnectorSource,
    options: Mapping[str, str],
    channels: Sequence[str],
    names: Mapping[tuple[str, int], str],
) -> DataFrameSource:
    def stream(spark: SparkSession, clock: int | None) -> DataFrame:
        # Spark prints plans in its errors, with all options that this expression does not hide.
        hidden = spark.conf.get(_HIDDEN, None) or _HIDDEN_BY_DEFAULT
        if _OF_KAFKA not in hidden:
            spark.conf.set(_HIDDEN, f"{hidden}|{_OF_KAFKA}")
        reader = spark.readStream.format("kafka").options(**_options(source, spark), **options)
        try:
            records = reader.load()
        except AnalysisException as error:
            if "kafka" not in str(error).lower():
                raise
            raise InvalidInputError(
                f"{source!r} needs Spark's Kafka connector, and this session has none; start it with spark.jars.packages="
                f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}."
            ) from error
        records = records.withColumnsRenamed(
            {"topic": TOPIC, "partition": PARTITION, "offset": OFFSET, "timestamp": TIME}
        ).drop("timestampType")
        try:
            rows = source.columns(records)
        except PySparkException as error:
            why = without_secrets(error, java_options(source.bootstrap_servers, source.options))
            raise InvalidInputError(f"columns= of {source!r} raised {why}; correct the function.") from None
        if not isinstance(rows, DataFrame) or not {TOPIC, PARTITION, OFFSET} <= set(rows.columns):
            returned = rows.columns if isinstance(rows, DataFrame) else rows
            raise InvalidInputError(
                f"columns= of {source!r} returned {returned!r}; return a DataFrame that keeps {TOPIC}, {PARTITION} and "
                f"{OFFSET}."
            )
        return rows.withColumn(CHANNEL, _channel(names))

    return DataFrameSource(stream, source.timestamp, CHANNEL, channels, OFFSET, source.timestamp_unit)


def _channel(names: Mapping[tuple[str, int], str]) -> Any:
    """Return the channel of a row: topic and partition, with the generation of a topic that was made again."""
    usual = F.concat_ws("-", F.col(TOPIC), F.col(PARTITION).cast("string"))
    generations = {topic: name.rpartition("#")[2] for (topic, _), name in names.items() if "#" in name}
    for topic, generation in generations.items():
        usual = F.when(F.col(TOPIC) == topic, F.concat_ws("#", usual, F.lit(generation))).otherwise(usual)
    return usual


def _options(source: KafkaConnectorSource, spark: SparkSession) -> dict[str, str]:
    topics = source.topics
    if isinstance(topics, re.Pattern):
        # Spark searches names for a pattern. As `topics.look_up` does, match whole names, and not Kafka's own topics.
        subscribed = {"subscribePattern": f"^(?!__)(?:{topics.pattern})$"}
    else:
        subscribed = {"subscribe": ",".join(topics)}
    return {
        **subscribed,
        **{f"kafka.{name}": value for name, value in java_options(source.bootstrap_servers, source.options).items()},
        "maxOffsetsPerTrigger": str(source.max_offsets_per_batch),
        # By default Spark gives up after 30 milliseconds. Every failover takes longer.
        "fetchOffset.numRetries": str(round(PATIENCE)),
        "fetchOffset.retryIntervalMs": "1000",
        **({"groupIdPrefix": source.group} if source.group else {}),
        "minPartitions": str(connect.parallelism(spark)),
        # A start finds out which offsets are lost. If Spark skipped some by itself, no one would know.
        "failOnDataLoss": "true",
    }


_FILES = {"ssl.certificate.location": "ssl.certificate.pem", "ssl.key.location": "ssl.key.pem"}
_JAVA = {
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.ca.location": "ssl.truststore.location",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
}
_LOGINS = {"PLAIN": "plain.PlainLoginModule"}


def java_options(bootstrap_servers: str, given: Mapping[str, Any]) -> dict[str, str]:
    """Return librdkafka's options under the names of Java's clients.

    Raises:
        InvalidInputError: Java's clients have no such option.
    """
    options = {"isolation.level": COMMITTED, **given}
    for name, held in _FILES.items():
        if name in options:
            options[held] = Path(options.pop(name)).read_text()
    java = {_JAVA.get(name, name): str(value) for name, value in options.items()}
    if "ssl.truststore.certificates" in java or "ssl.truststore.location" in java:
        java["ssl.truststore.type"] = "PEM"
    if "ssl.keystore.key" in java:
        java["ssl.keystore.type"] = "PEM"
    if java.get("ssl.endpoint.identification.algorithm") == "none":
        java["ssl.endpoint.identification.algorithm"] = ""
    if str(given.get("enable.ssl.certificate.verification", "true")).lower() == "false":
        raise InvalidInputError(
            "option='enable.ssl.certificate.verification' can't be false for Spark's connector; give ssl.ca.location."
        )
    if "security.protocol" in java:
        java["security.protocol"] = java["security.protocol"].upper()
    if "sasl.username" in java:
        module = _LOGINS.get(java.get("sasl.mechanism", "").upper(), "scram.ScramLoginModule")
        user, password = (_quoted(java.pop(name, "")) for name in ("sasl.username", "sasl.password"))
        java["sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{module} required username={user} password={password};"
        )
    return {**java, "bootstrap.servers": bootstrap_servers}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
