"""A rewind under kills: drivers die while PostgreSQL, Delta and Parquet go back, and another goes on to the end.

A bug has counted orders that are none, so the timeline that ends has values and shops that the mended code never makes.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import deltalake
import pandas as pd
import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from persistent_state import ParquetSink, open_store, verify
from persistent_state.windows import TIME
from tests.core import whole_times
from tests.spark.conftest import Launch
from tests.spark.rewinder import NAME
from tests.spark.sessions import Jvm
from tests.store.servers import Servers, needed
from tests.waiting import PATIENCE

pytestmark = pytest.mark.kills

SECOND = 1_000_000
FILES, GOOD = 6, 2
"""Files, and those from before the bug was deployed, in which no order is without a price."""

TO = 10 * GOOD * SECOND

TABLE = pa.schema([("shop", pa.string()), ("clock", TIME), ("value", pa.int64())])

Row = tuple[str, int, int]


def orders() -> pd.DataFrame:
    """Ten seconds of orders in each file: of shops that all files have, and of one that comes with each."""
    return pd.DataFrame(
        [
            (file, (10 * file + second) * SECOND, shop, price)
            for file in range(FILES)
            for second in (1, 4, 7)
            for shop, price in (
                ("north", 1 + file + second),
                (f"new {file}", second),
                (f"every {second}", 5 if file % 2 or file < GOOD else None),
                (f"no shop {file}", None),
            )
            if price is not None or file >= GOOD
        ],
        columns=["file", "at", "shop", "price"],
    )


def rows_by_clock(known: Sequence[int], fill: int | None = None) -> list[Row]:
    """At each clock the sums of the shops with orders since the clock before, as pandas makes them."""
    sold = orders().fillna({"price": fill} if fill is not None else {}).dropna()
    found: list[Row] = []
    for before, clock in zip([0, *known], known, strict=False):
        sums = sold[sold["at"] < clock].groupby("shop")["price"].sum()
        changed = sold[(before <= sold["at"]) & (sold["at"] < clock)]["shop"].unique()
        found += [(shop, clock, int(sums[shop])) for shop in changed]
    return sorted(found)


@dataclass
class Outputs:
    """What an application has given out."""

    folder: Path
    postgresql: str

    def postgres(self) -> list[Row]:
        url = sa.make_url(self.postgresql).set(drivername="postgresql+psycopg")
        with sa.create_engine(url, poolclass=NullPool).connect() as connection:
            rows = connection.exec_driver_sql("SELECT shop, clock, value FROM revenue").all()
        return sorted((shop, int(clock.timestamp() * SECOND), value) for shop, clock, value in rows)

    def delta(self) -> list[Row]:
        return rows_of(deltalake.DeltaTable(self.folder / "delta").to_pyarrow_table())

    def parquet(self) -> list[Row]:
        return rows_of(ParquetSink(self.folder / "parquet").dataset().to_table())

    def check(self, fill: int | None = None) -> int:
        """Each output is what pandas makes of the orders, those without a price filled. Return how many rows there are."""
        store = str(self.folder / "store")
        assert verify(store).problems == ()
        wanted = rows_by_clock(open_store(store).application(NAME).clocks(), fill)
        assert self.delta() == wanted
        assert self.parquet() == wanted
        # A value that was put back is of the clock of the rewind.
        newest = {shop: (shop, max(clock, TO), value) for shop, clock, value in sorted(wanted, key=lambda row: row[1])}
        found = [(shop, max(clock, TO), value) for shop, clock, value in self.postgres()]
        assert found == sorted(newest.values())
        return 2 * len(wanted) + len(found)


def rows_of(table: pa.Table) -> list[Row]:
    return sorted((row["shop"], row["clock"], row["value"]) for row in whole_times(table).to_pylist())


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_a_driver_that_goes_on_ends_a_rewind_whatever_sink_was_half_way_back(
    launch: Launch,
    jvms: Sequence[Jvm],
    servers: Servers,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    with needed():
        server = servers["postgresql"]
    server.make("rewound")
    url, _ = server.address("rewound", server.ports)
    (tmp_path / "orders").mkdir()
    for number, some in orders().groupby("file"):
        lines = (
            json.dumps({"at": at, "shop": shop, "price": None if pd.isna(price) else int(price)})
            for _, at, shop, price in some.itertuples(index=False)
        )
        (tmp_path / "orders" / f"{number}.json").write_text("\n".join(lines) + "\n")
    outputs = Outputs(tmp_path, url)
    # A table that takes a while to go back: each shop has files of its own.
    deltalake.DeltaTable.create(tmp_path / "delta", TABLE, partition_by=["shop"])

    def drive(*told: str) -> int:
        arguments = ("-m", "tests.spark.rewinder", str(tmp_path), "--postgresql", url, *told)
        return launch(*arguments, folder=tmp_path, **jvms[0].env).wait(PATIENCE)

    def log() -> str:
        return (tmp_path / "log").read_text()[-3000:]

    assert drive("--bug") == 0, log()
    with_bug = outputs.check(fill=1000)
    # Rows that stay and rows that go stand in one file, so that files are written of those that stay.
    deltalake.DeltaTable(tmp_path / "delta").optimize.compact()
    end, back = open_store(str(tmp_path / "store")).application(NAME).clocks()[-1], ["--to", str(TO)]
    assert drive(*back, "--die", "back") == -signal.SIGKILL, log()
    assert open_store(str(tmp_path / "store")).application(NAME).clocks()[-1] == TO
    # In another rewind, before a sink has followed the first, and in drivers that go on.
    for step, read, told in (
        ("postgresql", outputs.postgres, back),
        ("delta", outputs.delta, []),
        ("parquet", outputs.parquet, []),
    ):
        assert max(clock for _, clock, _ in read()) == end, f"{step} has gone back before its turn"
        assert drive(*told, "--die", step) == -signal.SIGKILL, f"{step}: {log()}"
    assert drive() == 0, log()
    assert open_store(str(tmp_path / "store")).application(NAME).clocks()[-1] == end
    right = outputs.check()
    record_property(
        "told", f"4 processes killed on the way back; of {with_bug} rows with a bug {right} are left, without"
    )
