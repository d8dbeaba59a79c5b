"""The engine on stores behind a network, on real servers; S3 is where the cluster's tests keep theirs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from persistent_state.store.files import open_files
from persistent_state.verify import verify
from tests.spark import stream
from tests.spark.stream import Stream, check_cut, check_end
from tests.spark.test_cluster import copy
from tests.store.servers import Servers, needed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("kind", ["azure", "gcs", "hdfs"])
def test_an_application_starts_and_starts_again_on_a_store(
    spark: SparkSession, servers: Servers, tmp_path: Path, kind: str
) -> None:
    with needed():
        server = servers[kind]
    server.make("spark")
    url, options = server.address("spark", server.ports)
    sent = Stream(tmp_path / "stream", seed=len(kind))
    for shards, close in ((1, False), (3, True)):
        sent.grow()
        app = stream.application(
            tmp_path, shards=shards, interval="10 seconds", store=f"{url}/apps", storage_options=options
        )
        app.run(spark, close=close)
    assert verify(f"{url}/apps", **options).problems == ()
    copy(open_files(f"{url}/apps", **options), tmp_path / "store")
    check_cut(tmp_path, sent)
    check_end(tmp_path, sent)
