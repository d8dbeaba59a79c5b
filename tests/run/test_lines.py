"""What people see of a run while it lasts: a line for each task, nothing that others write is lost, and no run fails for it."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from persistent_state import OrderedTask
from persistent_state.edges.parts import parts
from persistent_state.engine import Progress
from persistent_state.formatting import cut
from persistent_state.protocol.deliver import Delivered
from persistent_state.run import lines
from persistent_state.run.lines import Lines, Notebook, Plain, Terminal
from tests import core
from tests.two_tasks import TwoTasks
from tests.waiting import PATIENCE
from tests.words import SCHEMA, Words

PROGRESS = Progress(
    task="A", epoch=1, batch=1, messages=1000, replayed=0, skipped=0, replayed_or_late=0, copies=0, late=0, bad=0,
    reasons={}, upstream_min=None, clock=20_000_000, global_clock=-(2**63), outputs={},
)  # fmt: skip


class Screen(io.StringIO):
    """A terminal of 60 characters and 10 lines, as far as these tests write to it: `rows` are what is seen."""

    wide = 60

    def __init__(self) -> None:
        super().__init__()
        self.rows, self._row, self._column = [""], 0, 0

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        for part in re.findall(r"\x1b\[\d*[A-Z]|[\r\n]|[^\x1b\r\n]+", text):
            if part == "\r":
                self._column = 0
            elif part == "\n":
                self._row, self._column = self._row + 1, 0
                self.rows += [""] * (self._row + 1 - len(self.rows))
            elif part == "\x1b[J":
                self.rows[self._row :] = [self.rows[self._row][: self._column]]
            elif part.startswith("\x1b"):
                assert part.endswith("F")
                self._row, self._column = self._row - int(part[2:-1]), 0
                assert self._row >= 0
            else:
                assert len(part) < self.wide, "it would go on in the next line"
                row = self.rows[self._row].ljust(self._column)
                self.rows[self._row] = row[: self._column] + part + row[self._column + len(part) :]
                self._column += len(part)
        return len(text)


@pytest.fixture(autouse=True)
def size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_size", lambda file: (Screen.wide, 10))


class Clock:
    """A clock that stands until a test moves it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def lines_of(screen: lines.Screen, *names: str, now: Callable[[], float] | None = None) -> Lines:
    plans = [core.plan_of(Words(name), SCHEMA) for name in names]
    return Lines("shop", plans, screen, now or Clock())


def test_a_task_has_a_line_with_its_messages_rate_clock_and_what_it_lacks() -> None:
    screen, clock = Screen(), Clock()
    shown = lines_of(Terminal(screen), "A", "B", now=clock)
    shown.draw()
    assert screen.rows == ["", "A  no commit yet", "B  no commit yet"]
    shown.hear(replace(PROGRESS, messages=0))
    # How long Spark takes for the first commit is no matter of the rate.
    clock.seconds = 90
    shown.draw()
    shown.hear(PROGRESS)
    shown.hear(replace(PROGRESS, batch=2, messages=300, replayed=100, late=2, unread=1500))
    clock.seconds = 100
    shown.draw()
    assert screen.rows[0] == ""
    assert screen.rows[1].split("  ")[:4] == ["A", "1,200 messages", "120/s", "clock 1970-01-01T00:00:20Z"]
    assert screen.rows[2].split() == ["B", "no", "commit", "yet"]
    # It is cut where the terminal ends.
    assert len(screen.rows[1]) == Screen.wide - 1
    (line, _) = drawn_of(shown)
    assert line.endswith("  1,500 unread, 2 late")
    behind = {"sink": Delivered(None, 3), "other": Delivered(5, 1)}
    shown.hear(replace(PROGRESS, batch=3, messages=0, unread=0, late=2, bad=1, outputs=behind))
    (line, _) = drawn_of(shown)
    assert line.endswith("  3 to deliver, 2 late, 1 bad")
    clock.seconds = 131
    drawn_of(shown)
    clock.seconds = 162
    assert " 0/s " in drawn_of(shown)[0]


def drawn_of(shown: Lines) -> Sequence[str]:
    """The lines as they are drawn, as wide as they are."""
    seen: list[Sequence[str]] = []
    shown._screen, before = SimpleNamespace(draw=seen.append, end=seen.append), shown._screen
    shown.draw()
    shown._screen = before
    return seen[0]


def test_what_others_write_to_the_terminal_stays_above_the_lines() -> None:
    screen = Screen()
    shown = lines_of(Terminal(screen), "A", "B")
    screen.write("begin\n")
    for number in range(5):
        shown.draw()
        screen.write("".join(f"warning {number}.{part} {'x' * 30}\n" for part in range(number)))
    shown.close(None)
    assert shown._closed.is_set()
    written = [row for row in screen.rows if row.startswith(("begin", "warning"))]
    assert [row.split()[:2] for row in written] == [
        ["begin"],
        *(["warning", f"{number}.{part}"] for number in range(5) for part in range(number)),
    ]
    # Of the lines themselves only the summary is left.
    assert not any("no commit yet" in row and not row.startswith("warning") for row in screen.rows)
    assert [row.partition(" ")[0] for row in screen.rows[-6:]] == ["shop:", "task", "----", "A", "B", ""]


def test_more_tasks_than_lines_do_not_scroll() -> None:
    screen = Screen()
    shown = lines_of(Terminal(screen), *(f"task{number}" for number in range(20)))
    for _ in range(3):
        shown.draw()
    assert [row[:5] for row in screen.rows] == ["", *["task" + str(number) for number in range(8)]]


def test_the_summary_is_by_the_newest_entry() -> None:
    world, screen, clock = TwoTasks(), Screen(), Clock()
    screen.wide = 200
    shown = Lines("shop", [*world.plans.values()], Terminal(screen), clock)
    for task in world.plans:
        world.read(task, {"x": 25}, "x")
    world.read("A", {"x": 3}, "x")
    shown.hear(PROGRESS)
    clock.seconds = 4
    shown.close(core.newest(world.log))
    shown.close(None)
    rows = [row.rstrip() for row in screen.rows]
    assert rows == [
        "shop: 4 s, clock 1970-01-01T00:00:20Z",
        "task  messages  a second  clock                 late  bad",
        "----  --------  --------  --------------------  ----  ---",
        "A        1,000       250  1970-01-01T00:00:20Z     1    0",
        "B            0         0  1970-01-01T00:00:20Z     0    0",
        "The global clock waits for task=A: the newest message of channel='x' of its source is of 1970-01-01T00:00:25Z.",
        "",
    ]


class Fraud(OrderedTask):
    key = "account"
    state = pa.struct([("seen", pa.int64())])

    def process(self, state: Any, message: Any, context: Any) -> Any:
        return state


def test_an_ordered_task_has_one_line_and_counts_its_messages_once() -> None:
    tasks = parts(Fraud())
    plans = [SimpleNamespace(name=task.task_name, named="Fraud") for task in tasks]
    shown = Lines("shop", plans, Terminal(Screen()), Clock())  # type: ignore[arg-type]
    for plan, clock in zip(plans, (40, 30, 20), strict=True):
        shown.hear(replace(PROGRESS, task=plan.name, messages=7, clock=clock * 1_000_000))
    (line,) = drawn_of(shown)
    assert line.split("  ")[:4] == ["Fraud", "7 messages", "0/s", "clock 1970-01-01T00:00:20Z"]


def test_where_nothing_can_be_drawn_over_blocks_come_seldom_and_without_control() -> None:
    file, clock = io.StringIO(), Clock()
    shown = lines_of(Plain(file, clock), "A", now=clock)
    for _ in range(25):
        clock.seconds += 1
        shown.draw()
    shown.close(None)
    assert file.getvalue().splitlines()[:2] == ["A  no commit yet", "A  no commit yet"]
    assert file.getvalue().splitlines()[2] == "shop: 25 s"
    assert "\x1b" not in file.getvalue()
    assert "\r" not in file.getvalue()


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError("the terminal is gone")


def test_a_terminal_that_is_gone_ends_what_is_shown_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "EVERY", 0.001)
    shown = lines_of(Terminal(Broken()), "A")
    shown.start()
    shown._thread.join(PATIENCE)
    assert not shown._thread.is_alive()
    shown.hear(PROGRESS)
    shown.hear(replace(PROGRESS, task="unknown"))
    shown.close(None)
    monkeypatch.setattr(lines, "screen", lambda wanted, is_awaited: 1 / 0)
    assert lines.begin("shop", [], True, True) is None


@pytest.mark.parametrize(
    ("wanted", "is_awaited", "is_terminal", "at_prompt", "kind"),
    [
        (None, True, True, False, Terminal),
        (None, False, True, False, Terminal),
        (None, True, True, True, Terminal),
        (None, False, True, True, None),
        (True, False, True, True, Terminal),
        (False, True, True, False, None),
        (None, True, False, False, None),
        (True, True, False, False, Plain),
        (False, True, False, False, None),
    ],
)
def test_it_is_shown_on_a_terminal_and_elsewhere_only_if_asked(
    wanted: bool | None, is_awaited: bool, is_terminal: bool, at_prompt: bool, kind: type | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "stderr", Screen() if is_terminal else io.StringIO())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    if at_prompt:
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    else:
        monkeypatch.delattr(sys, "ps1", raising=False)
    found = lines.screen(wanted, is_awaited)
    assert found is None if kind is None else isinstance(found, kind)


def test_in_a_notebook_it_is_html_that_is_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    updated: list[str] = []
    handle = SimpleNamespace(update=updated.append)
    display = SimpleNamespace(HTML=str, display=lambda html, display_id: handle)
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    where = lines.screen(None, False)
    assert isinstance(where, Notebook)
    shown = lines_of(where, "<b>")
    shown.draw()
    shown.close(None)
    assert updated[0] == "<pre>&lt;b&gt;  no commit yet</pre>"
    assert "a second" in updated[-1]
    assert lines.screen(False, False) is None


@pytest.mark.parametrize(
    ("text", "places", "left"), [("abc", 5, "abc"), ("abc", 2, "ab"), ("東京x", 3, "東"), ("a", -1, "")]
)
def test_a_text_is_cut_by_the_places_that_it_takes(text: str, places: int, left: str) -> None:
    assert cut(text, places) == left
