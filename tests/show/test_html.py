"""What notebooks show of applications, stores and tasks: complete, self-contained, escaped, and without secrets."""

from __future__ import annotations

import base64
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from monoids import Sum
from persistent_state import (
    Application,
    Changes,
    FileSource,
    IntervalJoin,
    KafkaSource,
    Message,
    OrderedTask,
    PersistentTask,
    RateSource,
    RunningValues,
    SlidingWindow,
    SqlSink,
    ValuesAtClock,
    WindowState,
    open_store,
)
from persistent_state.kafka import Json
from tests import core
from tests.local_application import LocalApplication
from tests.two_tasks import TwoTasks
from tests.words import SCHEMA, Words

ROOT = Path(__file__).parents[2]
STORE = str(ROOT / "tests/fixtures/store-v1")

SECRET = "hunter2"


class Page(HTMLParser):
    """A piece of HTML: its tables as rows of cells, all of its text, and its images. Every element must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.text, self.images, self.tags, self._open = "", list[str](), set[str](), list[str]()
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        # Nothing is loaded from elsewhere, and nothing is run.
        assert not {"href", "onclick", "onload"} & {name for name, _ in attrs}
        if tag == "img":
            self.images += [str(value) for name, value in attrs if name == "src"]
        if tag in ("img", "br"):
            return
        self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1] == "style":
            assert "url(" not in data
            assert "#" not in data, "a colour of its own would not suit dark and light pages"
            return
        self.text += data
        if {"td", "th"} & set(self._open):
            self.tables[-1][-1][-1] += data


def shown(thing: Any) -> Page:
    """What a notebook shows."""
    return Page(thing._repr_html_())


def test_a_store_lists_its_applications() -> None:
    page = shown(open_store(STORE))
    (table,) = page.tables
    assert table[0][:3] == ["application", "tasks", "clock"]
    assert [row[:3] for row in table[1:]] == [["app", "2", "1970-01-01T00:00:00.000220Z"]]


def test_an_application_shows_what_show_prints_and_its_graph() -> None:
    page = shown(open_store(STORE).application("app"))
    facts, tasks, bad, channels = page.tables
    assert ["waits for", "task=Notes: the newest message of its source is of 1970-01-01T00:00:00.000235Z"] in facts
    assert [row[0] for row in tasks] == ["task", "Notes", "Totals"]
    assert ["Totals", "late", "1"] in bad
    assert [row[0] for row in channels] == ["task", "Notes", "Totals"]
    (image,) = page.images
    kind, _, data = image.partition(",")
    assert kind == "data:image/svg+xml;base64"
    assert ">Totals</text>" in base64.b64decode(data).decode()


def test_a_task_shows_itself_by_name_or_as_the_task() -> None:
    world = TwoTasks()
    world.read("A", {"x": 25}, "x")
    app = open_store(world.log.files.url).application("app")
    facts, outputs, bad, channels = shown(app.task(Words("A"))).tables
    assert facts[:3] == [["reads", "a source"], ["key", "word"], ["state", "Sum<int64>"]]
    assert outputs[1][:2] == ["A", "sink"]
    assert [row[0] for table in (bad, channels) for row in table[1:]] == ["all", "A"]
    assert shown(app.task("A")).text == shown(app.task(Words("A"))).text


@pytest.mark.parametrize("application", ["app", "shop"])
def test_what_is_not_there_is_a_sentence(application: str) -> None:
    page = shown(open_store(STORE).application(application).task("Sales"))
    assert page.text.startswith(
        "application app has no task Sales; it has Notes, Totals."
        if application == "app"
        else "there is no application shop in store="
    )
    assert page.tables == []


def test_a_damaged_application_is_a_sentence_beside_the_others(tmp_path: Path) -> None:
    for name in ("app", "other"):
        shutil.copytree(f"{STORE}/app", tmp_path / name)
    (tmp_path / "app/log/00000000000000000016.json").write_text("{}")
    store = open_store(str(tmp_path))
    (table,) = shown(store).tables
    assert [row[0] for row in table] == ["application", "other"]
    for damaged in (store, store.application("app"), store.application("app").task("Notes")):
        assert "log entry app/log/00000000000000000016.json" in shown(damaged).text


def test_an_empty_store_is_a_sentence(tmp_path: Path) -> None:
    assert shown(open_store(str(tmp_path))).text.startswith("there is no application in store=")


def test_names_are_text_and_no_html() -> None:
    name = "<script>alert('&amp;')</script>"
    files = core.memory()
    plan = core.plan_of(Words(name), SCHEMA, files=files, channel="word")
    world = LocalApplication({name: plan})
    world.start()
    world.source(name).channels = {"<i>": False}
    world.play(name, [(25_000_000, "<i>")])
    app = open_store(files.url).application("app")
    for page in (
        shown(app),
        shown(app.task(name)),
        shown(Application("app", files.url).add(Words(name), RateSource(1))),
    ):
        assert name in page.text
        assert not {"script", "i"} & page.tags


class Fraud(OrderedTask):
    key = "account"
    state = pa.struct([("seen", pa.int64())])

    def process(self, state: Any, message: Message, context: Any) -> Any:
        return state


class Hourly(PersistentTask):
    key = ("shop", "item")
    value = "n"

    def persistent_state(self) -> WindowState[int]:
        return WindowState(Sum(), SlidingWindow("1 hour", "10 minutes"))


class Unready(PersistentTask):
    value = "n"

    def persistent_state(self) -> WindowState[int]:
        raise RuntimeError(SECRET)


class Vault(RateSource):
    """A source of the user's, which shows its secret."""

    def __repr__(self) -> str:
        return f"Vault({SECRET})"


def test_an_application_that_is_defined_shows_its_tasks_without_starting_anything() -> None:
    orders = KafkaSource("orders", "kafka:9092", value=Json(SCHEMA))
    app = Application("shop", "memory://shop", checkpoint_interval="10 seconds", idle_after="1 minute")
    app.add(Words(), orders, sink=[SqlSink("shop.db", "words"), RunningValues(lambda values, batch: None)])
    app.add(Hourly(), {"new": orders, "old": Changes("Words", every="10 seconds")})
    app.add(
        Fraud(), FileSource("s3://bucket/rows", timestamp="ts", schema=SCHEMA), sink=ValuesAtClock(print, name="frauds")
    )
    app.add(IntervalJoin("orders", "fees", "0 seconds", "1 minute", key="word"), {"orders": orders, "fees": orders})
    facts, tasks = shown(app).tables
    assert ["checkpoint interval", "10 seconds"] in facts
    assert ["idle after", "1 minute"] in facts
    kafka, place = "KafkaSource('orders', 'kafka:9092')", SqlSink("shop.db", "words").name
    assert tasks == [
        ["task", "reads", "key", "state", "outputs"],
        ["Words", kafka, "word", "Sum(int64)", f"{place}, running values"],
        [
            "Hourly",
            f"new: {kafka}, old: Changes(task='Words', every='10 seconds')",
            "shop, item",
            "Sum(int64), SlidingWindow('1 hour', '10 minutes')",
            "-",
        ],
        ["Fraud", "FileSource('s3://bucket/rows')", "account", "any, in order", "frauds"],
        ["orders_fees", f"orders: {kafka}, fees: {kafka}", "word", "rows of IntervalJoin", "-"],
    ]


def test_no_secret_is_shown() -> None:
    app = Application("shop", f"s3://me:{SECRET}@bucket/apps", storage_options={"secret": SECRET})
    app.add(
        Words(),
        KafkaSource("orders", "kafka:9092", value=Json(SCHEMA), options={"sasl.password": SECRET}),
        sink=SqlSink(f"postgresql://me:{SECRET}@db/shop", "words"),
    )
    app.add(Words("Files"), FileSource(f"s3://me:{SECRET}@bucket/rows/", timestamp="ts", schema=SCHEMA))
    app.add(Unready(), Vault(1))
    text = app._repr_html_()
    assert "s3://bucket/apps" in text
    assert "Vault" in text
    assert SECRET not in text


def test_no_storage_option_is_shown() -> None:
    world = TwoTasks()
    world.read("A", {"x": 25}, "x")
    store = open_store(world.log.files.url, storage_options={"key": SECRET, "client_kwargs": {"token": SECRET}})
    for thing in (store, store.application("app"), store.application("app").task("A")):
        assert SECRET not in repr(thing)
        assert shown(thing).tables
        assert SECRET not in thing._repr_html_()
