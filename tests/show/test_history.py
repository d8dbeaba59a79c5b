"""How clocks have moved, by what is left of the log; and the same as a plot."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import matplotlib
import numpy as np
import pyarrow as pa
import pytest
from matplotlib import pyplot
from matplotlib.axes import Axes

from persistent_state import InvalidInputError, open_store
from persistent_state.protocol import rewind
from persistent_state.protocol.global_clock import Keeping
from tests import core
from tests.two_tasks import TwoTasks
from tests.words import SCHEMA, Words

SECOND = 1_000_000


@pytest.fixture(autouse=True)
def without_windows() -> Iterator[None]:
    """Draw into memory, and keep no figure."""
    before = matplotlib.get_backend()
    matplotlib.use("agg")
    yield
    pyplot.close("all")
    matplotlib.use(before)


def world_that_went_back() -> TwoTasks:
    """A world whose clocks come to 40 and 70 seconds, which goes back to 40, without its task B, and comes to 90."""
    world = TwoTasks(outputs=())
    for now, at in ((100, 45), (200, 75)):
        for task in world.plans:
            world.read(task, {"x": at}, "x", now=now * SECOND)
    rewind.rewind(world.log, core.plan_rewind(world.log, 40 * SECOND), writer="somebody", now=300 * SECOND)
    world.start("A")
    world.read("A", {"x": 95}, "x", now=400 * SECOND)
    return world


def seconds(times: list[object]) -> list[float | None]:
    return [None if time is None else time.timestamp() for time in times]  # type: ignore[attr-defined]


def test_history_has_a_row_for_each_entry_and_task_that_took_part() -> None:
    world = world_that_went_back()
    history = open_store(world.log.files.url).application("app").history()
    assert history.column_names == ["written", "entry", "task", "clock", "global_clock", "timeline"]
    assert history["entry"].to_pylist() == sorted(history["entry"].to_pylist())
    assert {*history["entry"].to_pylist()} == {*world.log.numbers()}
    newest = core.newest(world.log)
    rows = history.to_pylist()
    last = rows[-1]
    assert (last["task"], last["entry"], last["timeline"]) == ("A", newest.number, newest.timeline)
    assert seconds([last[name] for name in ("written", "clock", "global_clock")]) == [400, 90, 90]
    # Before the first checkpoint there is no clock, and a task that is left out has no rows.
    assert (rows[0]["clock"], rows[0]["global_clock"]) == (None, None)
    clocks = {name: [row["clock"].timestamp() for row in rows if row["clock"] and row["task"] == name] for name in "AB"}
    assert (max(clocks["B"]), clocks["A"][-1], 40 in clocks["A"]) == (70, 90, True)


def test_what_was_collected_is_left_out_but_for_kept_clocks() -> None:
    world = TwoTasks(outputs=())
    keeping = Keeping(1, retain=((20 * SECOND, 1000 * SECOND),))
    world.plans = {"B": world.plans["B"]}
    world.start("B")
    for n in range(1, 12):
        core.play(
            world.log,
            world.plans["B"],
            pa.RecordBatch.from_pylist([{"ts": n * 10 * SECOND + 5, "word": "x"}], SCHEMA),
            now=n * 1000 * SECOND,
            keeping=keeping,
        )
    before = open_store(world.log.files.url).application("app").history()
    gone = core.collect(world.log, core.newest(world.log).epoch, now=100_000 * SECOND, keeping=keeping)
    after = open_store(world.log.files.url).application("app").history()
    assert any("/log/" in path for path in gone)
    assert 0 < after.num_rows < before.num_rows
    kept = {each.entry for each in core.newest(world.log).kept.values()}
    assert kept <= {*after["entry"].to_pylist()}
    assert kept - {*world.log.numbers()}
    assert [row for row in before.to_pylist() if row in after.to_pylist()] == after.to_pylist()


def test_an_application_that_is_not_there_has_none() -> None:
    app = open_store("tests/fixtures/store-v1").application("shop")
    with pytest.raises(InvalidInputError, match="there is no application shop in store="):
        app.history()
    with pytest.raises(InvalidInputError, match="there is no application shop in store="):
        app.plot()


def lines_of(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """The lines of a plot by their names, as seconds; what is missing is left out."""
    legend = axes.get_legend()
    assert legend is not None
    found = {}
    for text, line in zip(legend.get_texts(), axes.get_lines(), strict=False):
        x, y = (
            np.asarray(data).astype("datetime64[us]").astype(np.int64) / SECOND for data in line.get_data(orig=True)
        )
        found[text.get_text()] = ([*x[y > -1e9]], [*y[y > -1e9]])
    return found


def test_the_plot_has_a_line_for_each_task_and_the_global_clock_and_shows_the_rewind() -> None:
    world = world_that_went_back()
    axes = open_store(world.log.files.url).application("app").plot()
    lines = lines_of(axes)
    assert lines.keys() == {"A", "B", "global clock"}
    assert (lines["A"][0][-1], lines["A"][1][-1]) == (400, 90)
    assert max(lines["B"][1]) == 70
    assert lines["global clock"][1][-1] == 90
    # One more line stands where a timeline ended.
    assert len(axes.get_lines()) == 4
    assert axes.get_title() == "app"
    axes.figure.canvas.draw()


def test_the_plot_is_drawn_where_it_is_asked_to_be_and_names_are_no_formulas() -> None:
    world = TwoTasks()
    name = "_$\\frac$"
    world.plans = {name: core.plan_of(Words(name), SCHEMA, files=world.log.files)}
    world.start(name)
    _, axes = pyplot.subplots()
    assert open_store(world.log.files.url).application("app").plot(axes) is axes
    axes.figure.canvas.draw()
    legend = axes.get_legend()
    assert legend is not None
    # A and B took part at the first start.
    assert [text.get_text() for text in legend.get_texts()] == ["A", "B", "_\\$\\frac\\$", "global clock"]


def test_without_the_package_a_plot_is_one_sentence_and_a_history_needs_none() -> None:
    program = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from persistent_state import InvalidInputError, open_store\n"
        "app = open_store('tests/fixtures/store-v1').application('app')\n"
        "assert app.history().num_rows\n"
        "try:\n    app.plot()\nexcept InvalidInputError as error:\n    print(error)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'persistent-state[plots]'" in run.stdout
