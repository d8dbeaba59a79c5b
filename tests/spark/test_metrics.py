"""A run answers at its endpoint while it lasts: metrics, whether it is alive, and whether it is ready."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import opentelemetry.metrics
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from monoids import Sum
from persistent_state import (
    Application,
    Changes,
    ConsoleSink,
    FileSource,
    InvalidInputError,
    NonWindowState,
    PersistentTask,
)
from persistent_state.metrics import measures
from tests.metrics.test_server import ask
from tests.metrics.test_telemetry import Collected
from tests.waiting import until
from tests.words import SCHEMA, Words

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECOND = 1_000_000


class Total(PersistentTask):
    """How many words there are."""

    value = "value"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


def write(folder: Path, name: str, *seconds: int) -> None:
    rows = pa.table({"ts": [second * SECOND for second in seconds], "word": ["a"] * len(seconds)}, SCHEMA)
    pq.write_table(rows, folder / f".{name}")
    (folder / f".{name}").rename(folder / name)


def values_at(url: str) -> dict[tuple[str, ...], float]:
    """The values of a run's metrics, by their names and labels, without the application."""
    text = ask(f"{url}/metrics", "application/openmetrics-text")[2]
    return {
        (
            sample.name.removeprefix("persistent_state_"),
            *(value for label, value in sorted(sample.labels.items()) if label != "application"),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_run_tells_its_metrics_until_it_ends(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(opentelemetry.metrics, "get_meter_provider", lambda: provider)
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder, "0.parquet", 5, 25)
    app = Application("words", str(tmp_path / "store"), checkpoint_interval="10 seconds", shards=1)
    app.add(Words(), FileSource(folder, timestamp="ts", schema=SCHEMA), ConsoleSink())
    app.add(Total(), Changes("Words"))
    running = app.start(spark, metrics=0)
    try:
        assert running.metrics_url is not None
        assert running.metrics_url.endswith("/metrics")
        url = running.metrics_url.removesuffix("/metrics")
        assert ask(f"{url}/health")[0] == 200

        def await_metric(value: float, *metric: str) -> dict[tuple[str, ...], float]:
            def told() -> dict[tuple[str, ...], float] | None:
                return found if (found := values_at(url)).get(metric) == value else None

            return until(told, f"{metric}={value}")

        await_metric(20, "global_clock_seconds")
        assert ("idle", "Total") not in await_metric(1, "idle", "Words")
        assert ask(f"{url}/ready") == (200, "text/plain; charset=utf-8", "application=words is ready.\n")
        write(folder, "1.parquet", 31, 45, 7)
        await_metric(40, "global_clock_seconds")
        # A commit is seen before its metrics are.
        await_metric(5, "messages_total", "Words")
        await_metric(2, "delivery_seconds_count", "console", "Words")
        told = until(
            lambda: found if (found := values_at(url))["step_seconds_count", "Total"] >= 2 else None, "the steps"
        )
        assert told["delivery_seconds_sum", "console", "Words"] > 0
        assert min(told["store_requests_total", kind] for kind in ("PUT", "GET", "LIST")) > 0
        assert told["messages_total", "Words"] == 5
        assert told["late_and_bad_rows", "late", "Words"] == 1
        assert told["micro_batch_seconds_count", "Words"] == told["commit_seconds_count", "Words"] >= 2
        assert told["step_seconds_count", "Total"] >= 2
        assert told["micro_batch_seconds_sum", "Words"] > told["commit_seconds_sum", "Words"] > 0
        assert told["recovery_seconds_count",] == 1
        assert told["restarts_total",] == 0
        assert told["source_position", "Words", "", ""] > 0
        assert told["readable",] == 1

        # OpenTelemetry is told the same.
        collected = Collected(reader)
        assert collected.values(measures.GLOBAL_CLOCK) == {(): 40}
        assert collected.values(measures.MESSAGES)["Words",] == 5
        assert collected.points(measures.STEP_SECONDS)["Total",].count >= 2

        # Another application can't have the port, and is refused before anything is changed.
        other = Application("other", str(tmp_path / "store"), checkpoint_interval="10 seconds", shards=1)
        other.add(Words(), FileSource(folder, timestamp="ts", schema=SCHEMA))
        with pytest.raises(InvalidInputError, match="Address already in use"):
            other.start(spark, metrics=int(url.rpartition(":")[2]))
        assert not (tmp_path / "store/other").exists()
    finally:
        running.stop()
    assert Collected(reader).values(measures.GLOBAL_CLOCK) == {}
    with pytest.raises(OSError):  # noqa: PT011
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=1)
    # A start that is refused for another reason frees the port, too.
    with pytest.raises(InvalidInputError):
        app.start(spark, metrics=int(url.rpartition(":")[2]), reset=["Nobody"])
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", int(url.rpartition(":")[2])))
