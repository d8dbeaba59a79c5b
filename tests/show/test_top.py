"""What operators watch: how far an application is, what it waits for, and what stands in the way, from the store alone."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from persistent_state import open_store
from persistent_state.cli.commands import main
from persistent_state.errors import NotThereError, StoreUnavailableError
from persistent_state.protocol import deliver
from persistent_state.serve.watch import Watch
from persistent_state.show import live, top, words
from persistent_state.show.top import StatusReader
from persistent_state.store.files import Files, open_files
from tests import core
from tests.two_tasks import TwoTasks
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
STORE = str(ROOT / "tests/fixtures/store-v1")


def rows_of(text: str, head: str) -> dict[str, list[str]]:
    """The rows of the table whose heads begin so, by their first cell. Cells have two spaces between them."""
    lines = text.splitlines()
    place = next(place for place, line in enumerate(lines) if line.startswith(head))
    found = {}
    for line in lines[place + 2 :]:
        if not line:
            break
        first, *others = [cell for cell in line.split("  ") if cell]
        found[first] = [cell.strip() for cell in others]
    return found


def drawn(reader: StatusReader, ticks: int, between: Any = lambda tick: None, width: int = 140) -> str:
    """What the live view has drawn after so many looks; between two of them 30 seconds go by, and this is called."""
    file, ticked = StringIO(), 0

    def wait(seconds: float) -> None:
        nonlocal ticked
        ticked += 1
        if ticked == ticks:
            raise KeyboardInterrupt
        between(ticked)

    with pytest.raises(KeyboardInterrupt):
        live.watch(
            reader,
            Console(file=file, force_terminal=True, width=width, height=60, color_system=None),
            seconds=lambda: 30.0 * ticked,
            now_us=lambda: 5_000_000,
            wait=wait,
        )
    return file.getvalue()


@pytest.mark.rows_in_files
def test_each_task_and_each_output_is_told_with_what_it_lags() -> None:
    world = TwoTasks()
    for task in world.plans:
        world.read(task, {"x": 25}, "x")
    deliver.record(world.log, core.newest(world.log).epoch, "A", "sink", 20_000_000, now=0)
    world.read("A", {"x": 105.5}, "x", now=3_000_000)
    world.read("B", {"x": 145.5}, "x", now=3_000_000)
    world.read("B", {"x": 12}, "x", now=3_000_000)
    text = "\n".join(top.lines(StatusReader(world.log.files).look()))
    assert "\nclock        1970-01-01T00:01:40Z\n" in text
    assert "waits for    task=A: the newest message of channel='x' of its source is of 1970-01-01T00:01:45.500" in text
    size = words.size(sum(stored.length for stored in core.newest(world.log).tasks["A"].files()))
    tasks = rows_of(text, "task  clock")
    assert tasks["A"] == ["1970-01-01T00:01:40Z", "1970-01-01T00:01:45.500000Z", "5 s", "0", "0", size]
    assert tasks["B"][:5] == ["1970-01-01T00:02:20Z", "1970-01-01T00:02:25.500000Z", "5 s", "1", "0"]
    assert rows_of(text, "task  output") == {"A": ["sink", "1970-01-01T00:00:20Z", "1 min 20 s", "1"]}


def test_without_a_terminal_it_prints_once_and_json_is_what_show_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", STORE]) == 0
    out, err = capsys.readouterr()
    assert rows_of(out, "task    clock").keys() == {"Notes", "Totals"}
    assert (err, "\x1b" in out) == ("", False)
    assert main(["show", STORE, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert main(["top", STORE, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == shown
    assert main(["top", STORE, "app", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == shown[0]


def test_a_damaged_application_is_told_and_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("app", "other"):
        shutil.copytree(f"{STORE}/app", tmp_path / name)
    (tmp_path / "app/log/00000000000000000016.json").write_text("{}")
    assert main(["top", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert "error        log entry app/log/00000000000000000016.json" in out
    assert rows_of(out, "task    clock").keys() == {"Notes", "Totals"}
    assert err.startswith("persistent-state: log entry app/log/00000000000000000016.json")
    assert err.count("\n") == 1
    assert main(["top", str(tmp_path), "other"]) == 0
    capsys.readouterr()
    assert main(["top", str(tmp_path), "--json"]) == 2
    damaged, other = json.loads(capsys.readouterr().out)
    assert (damaged.keys(), other["clock"]) == ({"application", "error"}, 220)


def test_a_folder_that_only_looks_like_an_application_hides_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(f"{STORE}/app", tmp_path / "app")
    (tmp_path / "backup/log").mkdir(parents=True)
    (tmp_path / "backup/log/readme.txt").write_text("hello")
    assert open_store(str(tmp_path)).applications() == ["app"]
    for command in ("top", "show", "verify", "metrics"):
        assert main([command, str(tmp_path)]) == 0
        assert capsys.readouterr().err == ""
    assert ">app<" in open_store(str(tmp_path))._repr_html_()


def test_show_lists_the_others_beside_an_application_that_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("app", "other"):
        shutil.copytree(f"{STORE}/app", tmp_path / name)
    (tmp_path / "app/log/00000000000000000016.json").write_text("{}")
    assert main(["show", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert rows_of(out, "application  tasks").keys() == {"other"}
    assert err.startswith("persistent-state: log entry app/log/00000000000000000016.json")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [([STORE, "shop"], "there is no application shop in store="), (["tests"], "there is no application in store=")],
)
def test_what_is_not_there_is_one_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["top", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


def test_the_live_view_follows_what_is_committed() -> None:
    world = TwoTasks()

    def go_on(tick: int) -> None:
        for task in world.plans:
            world.read(task, {"x": 25.0 + 30 * tick}, "x", now=3_000_000)

    first, *others = drawn(StatusReader(world.log.files), 4, go_on).split("╭─ app ")[1:]
    assert "none yet" in first
    assert "1970-01-01T00:00:50Z" in others[0]
    # 2 s before the present time.
    assert "written    1970-01-01T00:00:03Z, 2 s ago, entry" in others[0]
    assert "1970-01-01T00:01:20Z, moved by 30 s in the last 30 s" in others[1]
    assert "1970-01-01T00:01:50Z, moved by 1 min in the last 60 s" in others[2]


def test_a_movement_is_that_of_the_last_minute_or_two_however_seldom_somebody_looks() -> None:
    world = TwoTasks()
    reader = StatusReader(world.log.files)
    moved = []
    for number, second in enumerate((0, 30, 61, 500, 560)):
        for task in world.plans:
            world.read(task, {"x": 25.0 + 30 * number}, "x")
        moved.append(reader.look(second)[0].moved)
    assert moved == [None, (30_000_000, 30), (60_000_000, 61), None, (30_000_000, 60)]


def test_on_80_columns_names_are_cut_and_no_clock_is() -> None:
    world = TwoTasks(outputs=("parquet:/data/warehouse/of/the/shops/and/their/totals",))
    for second in (25, 45):
        for task in world.plans:
            world.read(task, {"x": second}, "x")
    deliver.record(world.log, core.newest(world.log).epoch, "A", world.plans["A"].outputs[0], 10_000_000, now=0)
    view = drawn(StatusReader(world.log.files), 1, width=80)
    assert view.count("1970-01-01T00:00:40Z") == 3
    assert view.count("1970-01-01T00:00:45Z") == 3
    assert view.count("1970-01-01T00:00:10Z") == 1
    assert "parquet:/data/" in view
    assert "totals" not in view
    # All columns are there.
    for head in ("newest message", "behind", "late", "bad", "size", "clocks behind"):
        assert head in view


def test_a_look_opens_no_entry_and_reads_no_file_that_it_names_while_nothing_was_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, read, files = StatusReader(open_files(STORE)), list[str](), type(open_files(STORE))
    before, reading = reader.look(), files.read

    def count(store: Files, path: str) -> Any:
        read.append(path.partition("/")[2][:4])
        return reading(store, path)

    monkeypatch.setattr(files, "read", count)
    assert reader.look(1.0)[0].summary == before[0].summary
    # Each application is asked for the next entry, which is not there, and for the one before the newest.
    assert read == 2 * len(before) * ["log/"]


def test_what_was_seen_stays_while_the_store_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    known = top.find_applications

    def answers(tick: int) -> None:
        def refuse(files: object) -> list[str]:
            raise StoreUnavailableError("the store does not answer; look at [red]its[/red] network.")

        monkeypatch.setattr(top, "find_applications", refuse if tick == 1 else known)

    looks = drawn(StatusReader(open_files(STORE)), 3, answers).split("╭─ app ")[1:]
    assert len(looks) == 3
    assert all("Totals" in look for look in looks)
    # It stands above the applications of the second look.
    sentence = "the store does not answer; look at [red]its[/red] network."
    assert [sentence in look for look in looks] == [True, False, False]


def test_an_application_that_goes_while_they_are_looked_at_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shutil.copytree(STORE, tmp_path / "store")
    shutil.copytree(store / "app", store / "other")
    files, known = open_files(str(store)), top.find_applications

    def then_gone(files: Files) -> list[str]:
        names = known(files)
        for gone in going:
            shutil.rmtree(store / gone)
        return names

    monkeypatch.setattr(top, "find_applications", then_gone)
    reader, watch, going = StatusReader(files), Watch(files, lambda: 0.0, lambda: 1), list[str]()
    assert [status.name for status in reader.look()] == ["app", "other"]
    going = ["other"]
    assert [status.name for status in watch.look().applications] == ["app"]
    shutil.copytree(store / "app", store / "other")
    assert [status.name for status in reader.look()] == ["app"]
    going = ["app"]
    with pytest.raises(NotThereError, match="there is no application app"):
        reader.look()


def test_names_that_look_like_markup_or_control_a_terminal_are_shown_as_they_are() -> None:
    world = TwoTasks()
    for task in world.plans:
        world.read(task, {"[bold]\x1b[2J": 25}, ["[bold]\x1b[2J"])
    view = drawn(StatusReader(world.log.files), 1)
    assert "channel='[bold]\\x1b[2J'" in view
    assert "\x1b[2J" not in view.split("╭─ app ")[1]


def test_without_the_package_it_prints_once_and_a_live_view_is_one_sentence() -> None:
    program = (
        "import sys; sys.modules['rich'] = sys.modules['rich.console'] = None\n"
        "from persistent_state.cli.commands import main; sys.exit(main(sys.argv[1:]))"
    )

    def run(program: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program, "top", STORE]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)

    assert run(program).returncode == 0
    refused = run(f"import sys; sys.stdout.isatty = lambda: True\n{program}")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "pip install 'persistent-state[terminal]'" in refused.stderr


def test_on_a_terminal_it_is_live_until_it_is_interrupted() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "persistent_state", "top", STORE]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=env) as process:
        os.close(theirs)
        seen = b""
        while b"Totals" not in seen:
            seen += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        with suppress(OSError):
            # At the end of a terminal Linux has an error, and others nothing more.
            while more := os.read(ours, 4096):
                seen += more
        assert process.wait(PATIENCE) == 0
    os.close(ours)
    # It has given the screen back, and says nothing of an interrupt.
    assert seen.rindex(b"\x1b[?1049l") > seen.rindex(b"Totals")
    assert b"Traceback" not in seen


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "0 s"),
        (7, "7 µs"),
        (15_003, "15 ms"),
        (5_500_000, "5 s"),
        (60_000_000, "1 min"),
        (3_725_000_000, "1 h 2 min"),
        (90_000_000_000 * 24, "25 d"),
    ],
)
def test_lengths_of_time_are_told_about(microseconds: int, text: str) -> None:
    assert words.length(microseconds) == text
