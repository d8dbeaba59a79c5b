"""A rewind shows its plan and asks before it changes anything, and tells what it has done."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from persistent_state import ValuesAtClock
from persistent_state.cli.commands import main
from persistent_state.protocol.naming import keep
from tests.processes import start_guarded
from tests.protocol.test_rewind import World
from tests.test_rewinds import Table, application, nothing, played
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]

PLAN = """\
application  app
clock        1970-01-01T00:00:00.000060Z (60), the newest kept one below 1970-01-01T00:00:00.000065Z
timeline     3, which begins then
tasks        total

tasks  read again                 from    how much
-----  -------------------------  ----  ----------
total  Numbers(end=20, oldest=0)  6     14 numbers

task   output  may have                     action                             rows
-----  ------  ---------------------------  ---------------------------------  ----
total  table   1970-01-01T00:00:00.000110Z  takes back what is above the clock    7

rows: how many rows of the sink go or change
"""

DONE = """
application=app is back at clock=1970-01-01T00:00:00.000060Z (60), in timeline 3
task=total sink='table' has gone back
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def table() -> Table:
    return Table([0, 110])


@pytest.fixture
def world(table: Table, monkeypatch: pytest.MonkeyPatch) -> World:
    """An application with an output, as `rewinding:app`."""
    world, module = played("table"), ModuleType("rewinding")
    vars(module)["app"] = application(world, table)
    monkeypatch.setitem(sys.modules, "rewinding", module)
    return world


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["rewind", "rewinding:app", *arguments])
        return (status, *capsys.readouterr())

    return run


def lines(text: str) -> list[str]:
    """The lines of a text, without how wide its columns are."""
    return [" ".join(line.split()) for line in text.splitlines() if not line.startswith("-")]


def test_a_dry_run_shows_the_plan_and_changes_nothing(
    world: World, table: Table, run: Callable[..., tuple[int, str, str]]
) -> None:
    before = world.newest
    status, out, err = run("--to", "1970-01-01T00:00:00.000065", "--dry-run")
    assert (status, lines(out), err) == (0, lines(PLAN), "")
    status, out, _ = run("--to", "65", "--dry-run", "--json")
    told = json.loads(out)
    assert (status, told["clock"], told["timeline"], told["tasks"]) == (0, 60, 3, ["total"])
    assert told["outputs"][0] | {"furthest": 0} == {
        "task": "total", "output": "table", "action": "retract", "furthest": 0, "clock": 60, "rows": 7, "is_done": False,
        "is_left_out": False, "why": "", "again_by": "",
    }  # fmt: skip
    assert told["reads"][0]["positions"] == {"": 6}
    assert (world.newest, table.record) == (before, [0, 110])


def test_it_goes_back_and_says_so(world: World, table: Table, run: Callable[..., tuple[int, str, str]]) -> None:
    status, out, err = run("--to", "65", "--yes")
    assert (status, lines(out), err) == (0, lines(PLAN + DONE), "")
    assert (world.newest.clock, world.newest.timeline, table.record) == (60, 3, [3, 60])
    status, out, _ = run("--to", "39", "--yes", "--json")
    assert (status, json.loads(out)["timeline"], json.loads(out)["outputs"][0]["is_done"]) == (0, 4, True)
    assert world.newest.clock == 30


def test_show_tells_the_timeline_and_which_sink_has_yet_to_go_back(
    world: World, table: Table, run: Callable[..., tuple[int, str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    table.is_away = True
    status, out, _ = run("--to", "65", "--yes")
    assert (status, out.splitlines()[-1]) == (0, "task=total sink='table' goes back at the next start")
    assert main(["show", world.files.url, "app"]) == 0
    shown = lines(capsys.readouterr().out)
    assert "timeline 3, which began with a rewind or as a branch" in shown
    clock = "1970-01-01T00:00:00.000060Z (60)"
    assert f"total table {clock}, has yet to go back to {clock} 0" in shown
    assert main(["show", world.files.url, "app", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["timeline"], told["kept"][-1]) == (3, {"clock": 60, "names": []})
    assert told["tasks"][0]["outputs"] == [{"output": "table", "clock": 60, "behind": 0, "lag": 0, "back_to": 60}]


DIES = """
import atexit, os, signal, sys, threading
from persistent_state.cli import commands
from persistent_state.run import rewinds
from tests.test_rewinds import Hung, application, played

commands.EXIT_SECONDS = 20
rewinds.SINK_SECONDS = 0.3
sink = Hung([0, 110])
world = played("hung")
app = application(world, sink)
# Python takes itself down: what a thread does in other languages' code then may be this.
atexit.register(os.kill, os.getpid(), signal.SIGSEGV)
if __name__ == "__main__":
    sys.argv[1:] = ["rewind", __file__ + ":app", "--to", "65", "--yes"]
    sys.exit(commands.main())
"""


def test_a_command_ends_with_its_status_while_a_sink_has_yet_to_go_back(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text(DIES)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(tmp_path / "dies.py")]
    process = start_guarded(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    assert process.wait(timeout=PATIENCE) == 0
    assert process.stdin is not None
    assert process.stdout is not None
    # What guards the process holds its output open as long as this.
    process.stdin.close()
    out = process.stdout.read().decode()
    assert "is back at clock=" in out
    assert "goes back at the next start" in out


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "yess\n"])
def test_who_does_not_agree_changes_nothing(
    answer: str, world: World, run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = world.newest
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    status, out, err = run("--to", "65")
    assert (status, lines(out), err) == (1, [*lines(PLAN), "nothing was changed"], "\nGo back? [y/N] ")
    assert world.newest == before


def test_who_agrees_goes_back(
    world: World, run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("Y\n"))
    assert run("--to", "65")[0] == 0
    assert world.newest.timeline == 3


def test_nobody_is_asked_without_a_terminal(
    world: World, run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = world.newest
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    status, out, err = run("--to", "65")
    assert (status, lines(out)) == (2, lines(PLAN))
    assert err == "persistent-state: no terminal is there to ask at, and nothing was changed; add --yes.\n"
    assert run("--to", "65", "--json") == (
        2, "", "persistent-state: no question is asked with --json; add --yes, or --dry-run to see the plan.\n",
    )  # fmt: skip
    assert world.newest == before


def test_an_output_may_get_its_clocks_again(
    world: World, run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["rewinding"]
    vars(module)["app"] = application(again := played("function nothing"), nothing)
    status, out, _ = run("--to", "60", "--yes", "--outputs", "function nothing=again")
    assert status == 0
    again_above = "keeps what it has, and is given every clock above 1970-01-01T00:00:00.000060Z again"
    assert again_above in out
    assert out.splitlines()[-1] == f"task=total sink='function nothing' {again_above}"
    assert again.newest.timeline == 3
    assert again.newest.owes == {}


def test_a_refusal_shows_the_plan_and_says_what_to_write(
    world: World, run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    vars(sys.modules["rewinding"])["app"] = application(played("function nothing"), nothing)
    status, out, err = run("--to", "60", "--yes")
    assert (status, err.count("\n")) == (2, 1)
    assert "can't go back" in out
    assert err.endswith(
        "and can't take them back; go back to a later clock, or give it on_rewind by ValuesAtClock, "
        "or say --outputs 'function nothing=again' to have them again.\n"
    )
    status, out, err = run("--to", "60", "--yes", "--json")
    assert (status, json.loads(out)["outputs"][0]["action"]) == (2, "refuse")
    assert "--outputs 'function nothing=again'" in err


def test_a_clock_is_said_by_its_name(world: World, run: Callable[..., tuple[int, str, str]]) -> None:
    keep(world.log, 60, "before the sale", 0)
    status, out, _ = run("--to", "before the sale", "--dry-run", "--json")
    assert (status, json.loads(out)["clock"]) == (0, 60)
    status, _, err = run("--to", "before", "--dry-run")
    assert status == 2
    assert "or the name of a kept clock; there are before the sale." in err


def test_what_the_user_s_code_prints_does_not_spoil_json(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "printing_rewinds.py").write_text(
        "import sys\nprint('loaded')\nmake = lambda: print('made') or sys.modules['rewinding'].made\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    called = ValuesAtClock(nothing, on_rewind=lambda clock: print("back to", clock))
    vars(sys.modules["rewinding"])["made"] = application(played("function nothing"), called)
    status = main(["rewind", "printing_rewinds:make", "--to", "60", "--yes", "--json"])
    out, err = capsys.readouterr()
    assert (status, json.loads(out)["clock"], err) == (0, 60, "loaded\nmade\nback to 60\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--to", "noon"], "clock='noon' is not a time, and keeps no clock of app; give"),
        (
            ["--to", "-10"],
            "no clock at or below clock=1969-12-31T23:59:59.999990Z (-10) is kept; the oldest kept one is",
        ),
        (
            ["--to", "60", "--outputs", "other=again"],
            "outputs names 'other', and there is no such output; there are table.",
        ),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(
    arguments: list[str], said: str, world: World, run: Callable[..., tuple[int, str, str]]
) -> None:
    status, out, err = run(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err


@pytest.mark.parametrize(
    "arguments", [[], ["--to", "60", "--outputs", "table"], ["--to", "60", "--outputs", "table=leave"]]
)
def test_a_wrong_use_says_the_right_one(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["rewind", "rewinding:app", *arguments])
    assert ended.value.code == 2
    assert "usage: persistent-state rewind" in capsys.readouterr().err


SLOW = """
import threading
from persistent_state.run import rewinds
from tests.test_rewinds import Hung, application, played

rewinds.SINK_SECONDS = 0.1

class Slow(Hung):
    def rewind(self, clock, values):
        super().rewind(clock, values)
        print("has gone back", flush=True)

sink = Slow([0, 110])
app = application(played("hung"), sink)
plan = app.rewind(65)
assert not plan.outputs[0].is_done
threading.Timer(0.5, sink.answers.set).start()
print("the script ends", flush=True)
"""


def test_a_script_s_end_gives_a_sink_that_has_yet_to_go_back_the_time_for_it() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", SLOW], cwd=ROOT, capture_output=True, text=True, env=env, check=False)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["the script ends", "has gone back"]), done.stderr
