"""The streams of the benchmarks have the keys, the channels and the files that their workload says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import folders, streams
from benchmarks.streams import SKEWED_SHARDS, Workload
from persistent_state.partials.keys import hash_keys, shard_of


def stream(place: Path, monkeypatch: pytest.MonkeyPatch, **options: object) -> tuple[int, pa.Table]:
    """The number of files of a small stream, and its rows."""
    monkeypatch.setattr(streams, "CACHE", place)
    files = sorted(Workload(1_000, 4_000, rows_per_file=1_000, **options).folder().iterdir())  # type: ignore[arg-type]
    return len(files), pa.concat_tables(map(pq.read_table, files))


def test_half_of_all_rows_of_a_hot_stream_have_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, rows = stream(tmp_path, monkeypatch, distribution="hot")
    assert (files, rows.num_rows, rows.column_names) == (4, 4_000, ["ts", "k", "v"])
    counts = np.bincount(rows["k"].to_numpy())
    assert counts[0] / 4_000 == pytest.approx(0.5, abs=0.05)
    assert counts[1:].max() < 20


def test_half_of_all_keys_of_a_skewed_stream_are_in_one_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, rows = stream(tmp_path, monkeypatch, distribution="skewed")
    keys = np.unique(rows["k"].to_numpy())
    shards = [shard_of(int(hash), SKEWED_SHARDS) for hash in hash_keys([pa.array(keys)], len(keys))]
    assert shards.count(0) / len(keys) == pytest.approx(0.5, abs=0.05)
    assert len(set(shards)) > SKEWED_SHARDS / 2


def test_a_stream_with_channels_has_each_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, rows = stream(tmp_path, monkeypatch, channels=500)
    assert rows["c"].to_pylist() == [f"device-{n % 500:05d}" for n in range(4_000)]


def test_what_a_folder_of_many_files_costs_is_measured(tmp_path: Path) -> None:
    found = folders.measure(tmp_path, 1_200, 30)
    assert len(list((tmp_path / "in").glob("*/*.parquet"))) == 1_230
    assert all(found[name] > 0 for name in ("first listing", "plan", "start", "nothing new", "some new"))
