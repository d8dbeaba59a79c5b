"""Kafka topics read by Spark's own connector, for decoders that are said in Spark's terms."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import cloudpickle
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from persistent_state.errors import InvalidInputError
from persistent_state.kafka.source import COMMITTED, GAP, OFFSET, PARTITION, TIME, TOPIC, KafkaSource
from persistent_state.kafka.topics import PATIENCE
from persistent_state.redact import without_secrets
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.sources.dataframe import DataFrameSource

CHANNEL = "kafka_channel"
_HIDDEN, _HIDDEN_BY_DEFAULT, _OF_KAFKA = "spark.sql.redaction.options.regex", "(?i)url", "^kafka[.]"
_logger = logging.getLogger("persistent_state")

AnySource: TypeAlias = "TimeReplayableSource | DataFrameSource"


def is_by_spark(source: AnySource) -> bool:
    """Whether Spark reads the source and plans its micro-batches."""
    return isinstance(source, DataFrameSource) or (isinstance(source, KafkaSource) and source.said is not None)


def unopened(source: AnySource) -> AnySource:
    """A source as far as its columns go: no broker is asked."""
    if not isinstance(source, KafkaSource) or source.said is None:
        return source
    return _frame(source, {"startingOffsets": "earliest"}, (), {})


def opened(
    source: KafkaSource, journal: Sequence[str], known: Mapping[str, int], start: Mapping[str, int]
) -> tuple[DataFrameSource, tuple[str, ...]]:
    """Topics from these positions on, and the lines that the first micro-batch has to write down.

    Raises:
        InvalidInputError: what is to be read is not there any more.
        StoreUnavailableError: no broker answers.
    """
    # A copy, as the source may be opened more than once.
    asked: KafkaSource = cloudpickle.loads(cloudpickle.dumps(source))
    asked.open(journal, known)
    lines = asked.reach(start, everything=False).journal
    offsets: dict[str, dict[str, int]] = {}
    names = {}
    for partition_name, place in asked.places.items():
        begin = start.get(partition_name, place.begin)
        if gap := place.gap(begin, partition_name not in start):
            # Spark tells of no gap, and no row stands for it.
            _logger.warning("%r goes on after what is lost: %s", source, gap)
            lines = (*lines, json.dumps({GAP: gap}))
        offsets.setdefault(place.topic, {})[str(place.partition)] = max(begin, place.first)
        names[place.topic, place.partition] = partition_name
    options = {"startingOffsets": json.dumps(offsets) if offsets else "earliest"}
    return _frame(source, options, tuple(names.values()), names), lines


def _frame(
    source: KafkaSource, options: Mapping[str, str], channels: Sequence[str], names: Mapping[tuple[str, int], str]
) -> DataFrameSource:
    said = source.said
    assert said is not None

    def stream(spark: SparkSession, clock: int | None) -> DataFrame:
        # Spark shows a plan in its errors, with options that it takes for harmless.
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
                f"{source!r} is read by Spark's connector, and this Spark has none; start it with spark.jars.packages="
                f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}."
            ) from error
        records = records.withColumnsRenamed(
            {"topic": TOPIC, "partition": PARTITION, "offset": OFFSET, "timestamp": TIME}
        ).drop("timestampType")
        try:
            made = said(records)
        except PySparkException as error:
            why = without_secrets(error, java_options(source.bootstrap_servers, source.options))
            raise InvalidInputError(f"value= of {source!r} can't be worked out: {why}; mend it.") from None
        if not isinstance(made, DataFrame) or not {TOPIC, PARTITION, OFFSET} <= set(made.columns):
            found = made.columns if isinstance(made, DataFrame) else made
            raise InvalidInputError(
                f"value= of {source!r} makes {found!r}; make a DataFrame that keeps {TOPIC}, {PARTITION} and {OFFSET}."
            )
        return made.withColumn(CHANNEL, _channel(names))

    return DataFrameSource(stream, source.timestamp, CHANNEL, channels, OFFSET, source.timestamp_unit)


def _channel(names: Mapping[tuple[str, int], str]) -> Any:
    """The channel of a row: that of the known partitions whose name is not the usual one, else the usual."""
    usual = F.concat_ws("-", F.col(TOPIC), F.col(PARTITION).cast("string"))
    generations = {topic: name.rpartition("#")[2] for (topic, _), name in names.items() if "#" in name}
    for topic, generation in generations.items():
        usual = F.when(F.col(TOPIC) == topic, F.concat_ws("#", usual, F.lit(generation))).otherwise(usual)
    return usual


def _options(source: KafkaSource, spark: SparkSession) -> dict[str, str]:
    topics = source.topics
    if isinstance(topics, re.Pattern):
        # Of whole names, which Spark would only search, and without Kafka's own topics: as `topics.look` has it.
        chosen = {"subscribePattern": f"^(?!__)(?:{topics.pattern})$"}
    else:
        chosen = {"subscribe": ",".join(topics)}
    return {
        **chosen,
        **{f"kafka.{name}": value for name, value in java_options(source.bootstrap_servers, source.options).items()},
        "maxOffsetsPerTrigger": str(source.max_offsets_per_batch),
        # By default it gives up after 30 milliseconds, which no failover is over in.
        "fetchOffset.numRetries": str(round(PATIENCE)),
        "fetchOffset.retryIntervalMs": "1000",
        **({"groupIdPrefix": source.group} if source.group else {}),
        "minPartitions": str(spark.sparkContext.defaultParallelism),
        # If it went on by itself, nobody would know where: a start finds out what is lost.
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
    """The options of librdkafka as Java's clients name them.

    Raises:
        InvalidInputError: Java's clients have nothing like it.
    """
    options = {"isolation.level": COMMITTED, **given}
    for name, held in _FILES.items():
        if name in options:
            options[held] = Path(options.pop(name)).read_text()
    found = {_JAVA.get(name, name): str(value) for name, value in options.items()}
    if "ssl.truststore.certificates" in found or "ssl.truststore.location" in found:
        found["ssl.truststore.type"] = "PEM"
    if "ssl.keystore.key" in found:
        found["ssl.keystore.type"] = "PEM"
    if found.get("ssl.endpoint.identification.algorithm") == "none":
        found["ssl.endpoint.identification.algorithm"] = ""
    if str(given.get("enable.ssl.certificate.verification", "true")).lower() == "false":
        raise InvalidInputError(
            "option='enable.ssl.certificate.verification' can't be false for Spark's connector; give ssl.ca.location."
        )
    if "security.protocol" in found:
        found["security.protocol"] = found["security.protocol"].upper()
    if "sasl.username" in found:
        module = _LOGINS.get(found.get("sasl.mechanism", "").upper(), "scram.ScramLoginModule")
        user, password = (_quoted(found.pop(name, "")) for name in ("sasl.username", "sasl.password"))
        found["sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{module} required username={user} password={password};"
        )
    return {**found, "bootstrap.servers": bootstrap_servers}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
