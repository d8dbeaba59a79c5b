"""A store without folders: a prefix without files is an empty folder, at a start and when the last file has gone."""

from __future__ import annotations

import os
import pickle
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from fsspec.registry import _registry

from persistent_state import read_state
from persistent_state.errors import InvalidInputError
from persistent_state.sources.files import FileSource
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from tests import core, page_code, words
from tests.sources.test_files import FILE, Driver, encode, source, table, values
from tests.store.servers import Servers, needed
from tests.test_pages import names

pytestmark = [
    pytest.mark.stores,
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Failed to fetch container properties:UserWarning"),
]

FAR = ["s3", "azure", "gcs"]


@dataclass
class Bucket:
    """A bucket without files, and the prefix that sources read."""

    url: str
    options: dict[str, Any]

    def source(self, **options: Any) -> FileSource:
        return source(self.url, storage_options=self.options, **options)

    def put(self, name: str, first: int) -> None:
        system, root = fsspec.core.url_to_fs(self.url, **self.options)
        system.pipe_file(f"{root}/{name}", encode(table(first, 1), name))

    def remove(self, name: str) -> None:
        system, root = fsspec.core.url_to_fs(self.url, **self.options)
        system.rm_file(f"{root}/{name}")


@pytest.fixture(params=["memory", *FAR])
def bucket(request: pytest.FixtureRequest, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    kind, name = str(request.param), f"bucket-{uuid.uuid4()}"
    if kind == "memory":
        return Bucket(f"memory://{name}/store", {})
    with needed():
        server = servers[kind]
    server.make(name)
    url, options = server.address(name, server.ports)
    if kind == "gcs":
        # What gcsfs registers asks for the kind of each bucket, in a protocol that the server here does not have.
        core = pytest.importorskip("gcsfs.core")
        monkeypatch.setitem(_registry, "gs", core.GCSFileSystem)
    return Bucket(url, options)


def test_a_prefix_without_files_is_an_empty_folder_and_reads_what_comes(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver(bucket.source)
    assert driver.next() == []
    assert driver.position == {}
    assert driver.next(everything=True) == []
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("persistent_state", "WARNING")
    assert record.getMessage().startswith(f"FileSource({bucket.url!r}) holds no file yet. Its store has no folders, so")
    bucket.put("a.csv", 7)
    assert values(driver.next()) == [7]
    caplog.clear()
    assert values(Driver(bucket.source).next()) == [7]
    assert caplog.text == ""


def test_a_file_is_read_whose_folder_has_no_name_and_a_marker_of_a_folder_is_not(bucket: Bucket) -> None:
    for number, name in enumerate(
        ["/0.csv", "day=1//1.csv", "2.csv", "//3.csv", "_out//4.csv", "x/_5.csv", "/tmp/6.csv", "day=1_$folder$"]
    ):
        bucket.put(name, number)
    driver = Driver(bucket.source)
    assert sorted(values(driver.next())) == [0, 1, 2, 3]
    assert len(driver.journal) == 4
    assert driver.next() == []
    assert sorted(values(Driver(bucket.source, driver.journal, 0, known=4 * FILE).next())) == [0, 1, 2, 3]


def test_the_last_file_may_go_while_a_source_runs_and_before_it_starts_again(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.put("a.parquet", 1)
    driver = Driver(partial(bucket.source, schema=None))
    assert values(driver.next()) == [1]
    bucket.remove("a.parquet")
    assert driver.next() == []
    assert driver.position == {"": FILE}
    assert caplog.text == ""
    again = Driver(bucket.source, driver.journal, FILE)
    assert again.next() == []
    assert "holds no file any more. Its store has no folders" in caplog.text
    for each in (driver, again):
        bucket.put("b.parquet", 2)
        assert values(each.next()) == [2]


def test_files_that_are_gone_are_named_where_they_are_to_be_read_again(bucket: Bucket) -> None:
    bucket.put("a.csv", 1)
    driver = Driver(bucket.source)
    driver.next()
    bucket.remove("a.csv")
    with pytest.raises(InvalidInputError, match=r"^1 of the 1 files of .* that are to be read again are gone: 'a.csv'"):
        bucket.source().check_again({}, driver.journal, driver.journal)
    bucket.source().check_again({"": FILE}, driver.journal, driver.journal)
    again = Driver(bucket.source, driver.journal, known=FILE)
    with pytest.raises(
        InvalidInputError, match=r"^file='a.csv' of .* is gone; bring it back, or name the task in rebuild"
    ):
        again.next()


def open_without_schema(bucket: Bucket) -> None:
    _ = bucket.source(schema=None).schema


def open_finite(bucket: Bucket) -> None:
    bucket.source(finite=True).open([], {})


def open_pattern(bucket: Bucket) -> None:
    source(f"{bucket.url}/*.csv", storage_options=bucket.options).open([], {})


def open_file(bucket: Bucket) -> None:
    bucket.put("a.csv", 1)
    source(f"{bucket.url}/a.csv", storage_options=bucket.options).open([], {})


@pytest.mark.parametrize(
    ("look", "sentence"),
    [
        (open_without_schema, "has no Parquet file to take the schema from; give it schema=."),
        (open_finite, "is finite and has no file, so that it would end before it begins"),
        (open_pattern, "is not a folder; give one: all files in it and below are read"),
        (open_file, "is not a folder; give one: all files in it and below are read"),
    ],
)
def test_what_can_not_do_without_files_is_refused_with_a_way_out(
    bucket: Bucket, look: Callable[[Bucket], None], sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        look(bucket)
    assert sentence in str(caught.value)
    assert caplog.text == ""


@pytest.mark.parametrize("bucket", FAR, indirect=True)
def test_a_bucket_that_does_not_exist_is_refused(bucket: Bucket) -> None:
    for url in (bucket.url, bucket.url.removesuffix("/store")):
        wrong = source(url.replace("://bucket-", "://wrong-"), storage_options=bucket.options)
        with pytest.raises(InvalidInputError, match="is in a bucket that does not exist; make it first, or correct"):
            wrong.open([], {})


def test_a_bucket_without_files_may_be_read_as_a_whole(bucket: Bucket) -> None:
    bucket.url = bucket.url.removesuffix("/store")
    driver = Driver(bucket.source)
    assert driver.next() == []
    bucket.put("a.csv", 3)
    assert values(driver.next()) == [3]


def test_a_copy_in_a_process_of_spark_does_not_warn_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = source(f"memory://{uuid.uuid4()}")
    sent = pickle.dumps(made)
    made.open([], {})
    assert len(caplog.records) == 1
    monkeypatch.setattr(os, "getpid", lambda: 0)
    pickle.loads(sent).open([], {})
    assert len(caplog.records) == 1


def test_the_code_of_the_page_on_stores(servers: Servers) -> None:
    """The options of docs/stores.md reach a bucket."""
    with needed():
        server = servers["s3"]
    server.make(name := f"bucket-{uuid.uuid4()}")
    url, options = server.address(name, server.ports)
    text = page_code.text_of("docs/stores.md")
    for says, here in {"s3://bucket": url, '{"key": "…", "secret": "…"}': repr(options)}.items():
        assert says in text
        text = text.replace(says, here)
    schema = pa.schema([("ts", pa.int64()), ("word", pa.string())])
    plan = replace(
        core.plan_of(words.Words(), schema, files=open_files(url + "/apps", options)), application="word-count"
    )
    log = Log(plan.files, "word-count")
    core.start(log, [plan])
    core.play(log, plan, pa.RecordBatch.from_pylist([{"ts": 5, "word": "a"}, {"ts": 20, "word": "a"}], schema))
    tables: list[pa.Table] = []

    def read(*given: Any, **more: Any) -> pa.Table:
        tables.append(read_state(*given, **more))
        return tables[-1]

    page_code.run(text, names(MessageCount=words.Words, read_state=read))
    assert [table.to_pylist() for table in tables] == [[{"word": "a", "value": 1}]]
