"""The demo with its state on stores behind a network, on real servers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from persistent_state.store.verify import verify
from tests.soak import soak_or
from tests.spark.conftest import Launch
from tests.spark.sessions import FOR_OTHERS, Jvm
from tests.spark.test_demo import show
from tests.store.servers import Servers, needed

pytestmark = pytest.mark.stores

FLIGHTS = 40_000


@pytest.mark.soak
@pytest.mark.parametrize("kind", soak_or(ci=["s3"], soak=["s3", "azure", "gcs", "hdfs"]))
def test_the_demo_counts_every_flight_once(
    launch: Launch, jvms: Sequence[Jvm], servers: Servers, tmp_path: Path, kind: str
) -> None:
    with needed():
        server = servers[kind]
    server.make("demo")
    url, options = server.address("demo", server.ports)
    told = ("--store", url, "--flights", str(FLIGHTS), "--folder", str(tmp_path / "demo"))
    demo = show(launch, tmp_path, *told, patch=FOR_OTHERS, STORAGE_OPTIONS=json.dumps(options), **jvms[0].env)
    assert demo.status == 0, demo.complaints[-4000:]
    assert demo.last_line == f"exactly once: {FLIGHTS} messages, 0 lost, 0 counted twice"
    (store,) = {line.split()[5].rstrip(",") for line in demo.lines if line.startswith("The state will be in ")}
    assert store.startswith(f"{url}/exactly-once-")
    verified = verify(store, storage_options=options)
    assert (verified.problems, verified.entries > 4) == ((), True)
