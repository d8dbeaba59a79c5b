"""The command `run`: what it hands on, what it prints, and what its exit status tells a supervisor; without Spark."""

from __future__ import annotations

import inspect
import json
import logging
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import persistent_state
from persistent_state import (
    Application,
    FencedError,
    InvalidInputError,
    Local,
    StateError,
    StoreUnavailableError,
    errors,
)
from persistent_state.cli import run as command
from persistent_state.cli import spark_session, stop_signals
from persistent_state.cli.commands import main
from persistent_state.cli.json_lines import LOGGER, PROGRESS
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.run.running import asked_to_stop, hand_on
from tests.processes import start_guarded
from tests.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]


class Played(Application):
    """An application that remembers how it was run, and then does as a test says."""

    def play(self, do: Callable[[], bool | None]) -> Played:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._do = do
        return self

    def _played(self, how: str, options: dict[str, Any]) -> Any:
        self.calls.append((how, options))
        if self._do() is not None and how == "run":
            self.was_stopped = True
        return SimpleNamespace(
            was_asked_to_stop=hasattr(self, "was_stopped"), clock=60, stop=lambda: None, await_termination=lambda: True
        )

    def run(self, spark: Any, **options: Any) -> Any:
        return self._played("run", {"spark": spark, **options})

    def start(self, spark: Any, **options: Any) -> Any:
        return self._played("start", {"spark": spark, **options})


class Session:
    """A session of Spark that notes its settings and whether it was stopped."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.is_stopped = False

    def make(self, *told: Any) -> Session:
        self.told = [*told]
        return self

    def stop(self) -> None:
        self.is_stopped = True


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    session = Session()
    monkeypatch.setattr(command, "start_session", session.make)
    return session


@pytest.fixture
def play(session: Session, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Played]:
    """Make an application as `played:app` that does something when it is run."""

    def play(do: Callable[[], Any] = lambda: None) -> Played:
        app, module = Played("app", "memory://played").play(do), ModuleType("played")
        vars(module)["app"] = app
        monkeypatch.setitem(sys.modules, "played", module)
        return app

    return play


def raising(error: BaseException) -> Callable[[], None]:
    def do() -> None:
        raise error

    return do


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The lines that were printed, each of which is an object of JSON."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_run_that_comes_to_its_end_is_done(
    play: Callable[..., Played], session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    app = play()
    assert main(["run", "played:app"]) == command.DONE
    how = {"spark": session, "drain": False, "reset": [], "rebuild": [], "metrics": None, "show_progress": False}
    ((called, options),) = app.calls
    del options["on_progress"]
    assert (called, options) == ("run", how)
    assert session.told == ["app", None, []]
    assert session.is_stopped
    first, last = lines(capsys)
    assert (first["event"], first["application"], first["store"]) == ("starting", "app", "memory://played")
    assert (last["event"], last["status"], last["result"], last["clock"]) == ("ended", 0, "done", 60)
    assert last["seconds"] >= 0
    assert "error" not in last
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", last["at"])


def test_options_are_handed_on(play: Callable[..., Played], session: Session) -> None:
    app = play()
    once = ["--drain", "--metrics", "0.0.0.0:9108", "--reset", "A", "--rebuild", "B", "--rebuild", "C"]
    spark = ["--master", "local[3]", "--conf", "spark.a=b=c", "--conf", "spark.d="]
    assert main(["run", "played:app", *once, *spark]) == 0
    assert main(["run", "played:app", "--follow", "--metrics=9108", "--trigger", "10 seconds"]) == 0
    (run, of_run), (start, of_start) = app.calls
    assert (run, of_run["drain"], of_run["metrics"]) == ("run", True, "0.0.0.0:9108")
    assert (of_run["reset"], of_run["rebuild"]) == (["A"], ["B", "C"])
    assert start == "start"
    assert {**of_start, "spark": None, "on_progress": None} == {
        "spark": None,
        "trigger": "10 seconds",
        "metrics": 9108,
        "show_progress": False,
        "on_progress": None,
    }
    assert session.told == ["app", None, []]
    assert main(["run", "played:app", *spark]) == 0
    assert session.told == ["app", "local[3]", [("spark.a", "b=c"), ("spark.d", "")]]


def test_a_run_on_this_machine_alone_starts_no_session(
    play: Callable[..., Played], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = play()
    monkeypatch.setattr(command, "start_session", None)
    assert main(["run", "played:app", "--local", "--workers", "3"]) == command.DONE
    assert main(["run", "played:app", "--follow", "--local"]) == command.DONE
    assert [(how, options["spark"]) for how, options in app.calls] == [("run", Local(3)), ("start", Local())]
    wrong = {
        ("--local", "--master", "local[2]"): "--master is for Spark, and --local runs without; leave one of them out.",
        ("--local", "--conf", "spark.a=b"): "--conf is for Spark, and --local runs without; leave one of them out.",
        ("--workers", "2"): "--workers=2 is for a run on this machine alone; add --local, or leave it out.",
        ("--local", "--workers", "0"): "workers=0; there must be at least one.",
    }
    for options, why in wrong.items():
        capsys.readouterr()
        assert main(["run", "played:app", *options]) == command.MEND
        assert lines(capsys)[-1]["error"] == why
    assert len(app.calls) == 2


STATUSES = {
    "StateError": command.TRY_AGAIN,
    "StoreUnavailableError": command.TRY_AGAIN,
    "StoreRefusedError": command.TRY_AGAIN,
    "CommitUnknownError": command.TRY_AGAIN,
    "DisagreementError": command.TRY_AGAIN,
    "ExistsError": command.TRY_AGAIN,
    "InvalidInputError": command.MEND,
    "NotThereError": command.MEND,
    "TaskFailedError": command.MEND,
    "DamagedError": command.MEND,
    "FencedError": command.FENCED,
}


def test_each_class_of_errors_has_a_status() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, StateError)]
    assert {kind.__name__: command.status_of(kind("x")) for kind in kinds} == STATUSES


@pytest.mark.parametrize("name", ["StateError", "InvalidInputError", "FencedError"])
def test_an_error_ends_the_run_with_its_status(
    name: str, play: Callable[..., Played], session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    play(raising(getattr(errors, name)("something is wrong.")))
    assert main(["run", "played:app"]) == STATUSES[name]
    out, err = capsys.readouterr()
    last = json.loads(out.splitlines()[-1])
    assert (last["event"], last["status"], last["error"]) == ("ended", STATUSES[name], "something is wrong.")
    assert last["result"] == command.RESULTS[STATUSES[name]]
    assert f"{last['result']} (exit status {STATUSES[name]}): something is wrong." in err
    assert session.is_stopped
    assert main(["run", "played:app", "--follow"]) == STATUSES[name]


def test_an_error_that_nobody_foresaw_is_tried_again_and_shows_where_it_was(
    play: Callable[..., Played], capsys: pytest.CaptureFixture[str]
) -> None:
    play(raising(ConnectionError("gone")))
    assert main(["run", "played:app"]) == command.TRY_AGAIN
    assert "Traceback" in (err := capsys.readouterr().err)
    assert "gone" in err


def test_an_error_of_another_library_is_told_without_secrets(
    play: Callable[..., Played], capsys: pytest.CaptureFixture[str]
) -> None:
    play(raising(ConnectionError("no answer of https://me:hunter2@host/a?sig=abc with key Zx81")))
    assert main(["run", "played:app", "--conf", "spark.hadoop.fs.s3a.secret.key=Zx81"]) == command.TRY_AGAIN
    out, err = capsys.readouterr()
    told = "ConnectionError: no answer of https://***@host/a?*** with key ***."
    assert json.loads(out.splitlines()[-1])["error"] == told
    assert err.endswith(f"try again (exit status 75): {told}\n")
    # The places are there, and the text of the error nowhere.
    assert "in do\n" in err
    assert not [secret for secret in ("hunter2", "abc", "Zx81") if secret in out + err]


def test_what_can_not_be_loaded_is_to_be_mended(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "no_such_module:app"]) == command.MEND
    assert main(["run", f"{__file__}:no_such_name"]) == command.MEND
    assert "there is no module no_such_module" in capsys.readouterr().err


class Builder:
    """Instead of Spark's: what it starts is the environment in which it would have."""

    def config(self, key: str, value: str) -> Builder:
        return self

    appName = master = lambda self, name: self

    def getOrCreate(self) -> dict[str, str]:
        return {**os.environ}


@pytest.mark.parametrize(
    ("set_before", "looks_with"),
    [
        ({}, sys.executable),
        ({"PYSPARK_PYTHON": "/opt/python"}, "/opt/python"),
        ({"PYSPARK_PYTHON": "/opt/python", "PYSPARK_DRIVER_PYTHON": "/opt/other"}, "/opt/other"),
    ],
)
def test_spark_looks_for_data_sources_with_this_python_if_nobody_names_another(
    set_before: Mapping[str, str], looks_with: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import SparkSession

    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "")  # It is put back afterwards.
        monkeypatch.delenv(name)
    for name, value in set_before.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(SparkSession, "builder", Builder())
    seen = spark_session.start_session("name", "local[1]", [])
    assert seen["PYSPARK_DRIVER_PYTHON"] == looks_with
    assert seen.get("PYSPARK_PYTHON") == set_before.get("PYSPARK_PYTHON")


def test_a_run_that_goes_on_is_tried_again_if_somebody_stopped_a_query_of_it(
    play: Callable[..., Played], capsys: pytest.CaptureFixture[str]
) -> None:
    play().was_stopped = True
    assert main(["run", "played:app", "--follow"]) == command.TRY_AGAIN
    assert lines(capsys)[-1]["error"].startswith("somebody stopped a query of application=app")


def test_a_session_that_does_not_start_is_tried_again(
    play: Callable[..., Played], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = play()
    monkeypatch.setattr(command, "start_session", lambda *_: raising(StateError("Spark did not start."))())
    assert main(["run", "played:app"]) == command.TRY_AGAIN
    assert (app.calls, lines(capsys)[-1]["error"]) == ([], "Spark did not start.")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--follow", "--rebuild", "A"], "run once with --rebuild and without --follow"),
        (["--follow", "--reset", "A"], "run once with --reset and without --follow"),
        (["--trigger", "1 minute"], "add --follow"),
        (["--follow", "--trigger", "10x"], "trigger='10x'"),
        (["--metrics", "foo"], "metrics='foo' is not a port"),
        (["--metrics", "0.0.0.0"], "metrics='0.0.0.0' is not a port"),
    ],
)
def test_options_that_are_wrong_or_do_not_go_together_are_refused_before_spark_starts(
    options: list[str], says: str, play: Callable[..., Played], session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    app = play()
    assert main(["run", "played:app", *options]) == command.MEND
    assert says in capsys.readouterr().err
    assert (app.calls, session.told) == ([], [])


@pytest.mark.parametrize("options", [["--follow", "--drain"], ["--conf", "spark.a"], ["--conf", "=b"], []])
def test_arguments_that_are_none_have_the_status_of_what_is_to_be_mended(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", *options, *(["played:app"] if options else [])])
    assert ended.value.code == command.MEND
    assert "persistent-state run: error:" in capsys.readouterr().err


def test_a_run_that_was_asked_to_end_before_its_end_is_to_be_tried_again(
    play: Callable[..., Played], capsys: pytest.CaptureFixture[str]
) -> None:
    play(lambda: True)
    assert main(["run", "played:app"]) == command.TRY_AGAIN
    assert lines(capsys)[-1]["result"] == "try again"


@pytest.mark.parametrize(
    "error", [StateError("x"), StoreUnavailableError("x"), FencedError("x"), InvalidInputError("x")]
)
def test_what_fails_while_a_run_ends_as_asked_is_no_failure_unless_it_would_fail_again(
    error: StateError, play: Callable[..., Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, requests = stop_signals.heard, list[threading.Event]()

    @contextmanager
    def noted(end: Callable[[int | None], object]) -> Iterator[threading.Event]:
        with heard(end) as asked:
            requests.append(asked)
            yield asked

    def do() -> None:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        # The thread that hears the signal does so a moment later.
        assert requests[-1].wait(PATIENCE)
        raise error

    monkeypatch.setattr(stop_signals, "heard", noted)
    play(do)
    final = command.status_of(error) != command.TRY_AGAIN
    assert main(["run", "played:app", "--follow"]) == (command.status_of(error) if final else command.DONE)
    assert main(["run", "played:app"]) == command.status_of(error)


def test_a_run_that_ended_as_asked_has_its_clock_in_the_last_line(
    play: Callable[..., Played], capsys: pytest.CaptureFixture[str]
) -> None:
    def do() -> bool:
        with asked_to_stop() as asked:
            signal.raise_signal(signal.SIGTERM)
        # What `Application.run` does then ends a program, and not this command.
        hand_on(asked)
        return True

    play(do)
    assert main(["run", "played:app"]) == command.TRY_AGAIN
    last = lines(capsys)[-1]
    assert (last["result"], last["clock"]) == ("try again", 60)


def test_a_run_that_fails_has_the_clock_of_its_newest_commit_in_the_last_line(
    play: Callable[..., Played], capsys: pytest.CaptureFixture[str]
) -> None:
    def do() -> None:
        told = app.calls[-1][1]["on_progress"]
        for clock in (BEGINNING, 10, 30, 20):
            told(SimpleNamespace(global_clock=clock))
        raise StoreUnavailableError("the store is down.")

    app = play(do)
    assert main(["run", "played:app"]) == command.TRY_AGAIN
    assert lines(capsys)[-1]["clock"] == 30


def test_stdout_has_lines_of_json_and_nothing_else(
    play: Callable[..., Played], capsys: pytest.CaptureFixture[str]
) -> None:
    def do() -> None:
        print("printed by the user's code")
        logging.getLogger(PROGRESS).info("%s", json.dumps({"task": "A", "batch": 1, "clock": None}))
        LOGGER.warning("task=%s is slow.", "A")
        logging.getLogger("other").warning("not ours")

    play(do)
    level, handlers = LOGGER.level, [*LOGGER.handlers]
    assert main(["run", "played:app", "--json"]) == 0
    out, err = capsys.readouterr()
    found = [json.loads(line) for line in out.splitlines()]
    assert [line["event"] for line in found] == ["starting", "progress", "log", "ended"]
    assert {**found[1], "at": ""} == {
        "at": "", "level": "INFO", "event": "progress", "task": "A", "batch": 1, "clock": None
    }  # fmt: skip
    assert (found[2]["level"], found[2]["text"]) == ("WARNING", "task=A is slow.")
    assert err == "printed by the user's code\n"
    assert (LOGGER.level, LOGGER.handlers) == (level, handlers)


def test_on_a_terminal_there_are_no_lines_of_json_unless_they_are_asked_for(
    play: Callable[..., Played], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = play(lambda: print("printed by the user's code"))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["run", "played:app"]) == 0
    assert capsys.readouterr().out == "printed by the user's code\n"
    assert app.calls[0][1]["show_progress"] is None
    assert main(["run", "played:app", "--json"]) == 0
    assert len(lines(capsys)) == 2


def test_a_run_does_not_end_because_nobody_reads_its_lines(play: Callable[..., Played]) -> None:
    class Broken:
        def isatty(self) -> bool:
            return False

        def fileno(self) -> int:
            raise OSError

        def write(self, text: str) -> None:
            raise BrokenPipeError

        def flush(self) -> None:
            """Do nothing, as there is nothing to write."""

    play()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", Broken())
        assert command._run(SimpleNamespace(  # type: ignore[arg-type]
            application="played:app", follow=False, drain=False, trigger=None, reset=[], rebuild=[], metrics=None, master=None,
            conf=[], json=False, local=False, workers=None,
        )) == 0  # fmt: skip


def test_the_status_is_the_same_if_nobody_reads_the_lines(tmp_path: Path) -> None:
    program = tmp_path / "fenced.py"
    program.write_text(FENCED)
    reading, writing = os.pipe()
    process = start_guarded(
        [sys.executable, str(program)], cwd=ROOT, stdout=writing, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    os.close(writing)
    # The run has begun, and nobody reads from now on.
    assert b'"starting"' in os.read(reading, 1000)
    os.close(reading)
    (tmp_path / "nobody reads").touch()
    assert process.wait(PATIENCE) == command.FENCED


@pytest.mark.parametrize(
    ("stderr", "error", "status"),
    [
        ("closed", "FencedError", command.FENCED),
        ("closed", "TypeError", command.TRY_AGAIN),
        ("closed as stdout", "TypeError", command.TRY_AGAIN),
        ("/dev/full", "FencedError", command.FENCED),
        ("/dev/full", "TypeError", command.TRY_AGAIN),
        ("a pipe that nobody reads", "FencedError", command.FENCED),
    ],
)
def test_the_status_is_the_same_if_no_error_can_be_printed(
    stderr: str, error: str, status: int, tmp_path: Path
) -> None:
    program = tmp_path / "fenced.py"
    program.write_text(FENCED.replace("raise FencedError", f"raise {error}"))
    (tmp_path / "nobody reads").touch()
    run = [sys.executable, str(program)]
    how: dict[str, Any] = {"cwd": ROOT, "stdout": subprocess.DEVNULL, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    if stderr.startswith("closed"):
        closed = "2>&-" if stderr == "closed" else ">&- 2>&-"
        process = start_guarded(["sh", "-c", f'exec "$@" {closed}', "sh", *run], **how)
    elif stderr == "/dev/full":
        with open("/dev/full", "w") as full:
            process = start_guarded(run, stderr=full, **how)
    else:
        reading, writing = os.pipe()
        process = start_guarded(run, stderr=writing, **how)
        os.close(writing)
        os.close(reading)
    assert process.wait(PATIENCE) == status


@pytest.mark.parametrize("stderr", ["/dev/full", "&-"])
def test_a_command_has_failed_if_it_can_not_print_why(stderr: str) -> None:
    """The interpreter would end with another status if it failed at its end to write what could not be written before."""
    show = [sys.executable, "-m", "persistent_state", "show", "/no/such/store"]
    done = subprocess.run(["sh", "-c", f'exec "$@" 2>{stderr}', "sh", *show], cwd=ROOT, stdout=subprocess.DEVNULL)
    assert done.returncode == 2


FENCED = """
import sys, time
from pathlib import Path
from persistent_state import FencedError
from persistent_state.cli import run
from persistent_state.cli.commands import main
from tests.cli.test_run import Played, Session

run.start_session = Session().make

def end():
    while not Path(__file__).with_name("nobody reads").exists():
        time.sleep(0.05)
    raise FencedError("a newer driver owns it.")

app = Played("app", "memory://played").play(end)
if __name__ == "__main__":
    sys.exit(main(["run", __file__ + ":app"]))
"""


PROGRAM = """
import os, sys, time
from types import SimpleNamespace
from persistent_state.cli import run, stop_signals
from persistent_state.cli.commands import main
from tests.cli.test_run import Played, Session

stop_signals.SECONDS = {seconds}
# However long this process takes to hear the first signal, the next one is another request.
stop_signals.REPEAT_SECONDS = 0
run.LAST_WORDS = 3600
run.start_session = Session().make

def wait():
    # So does Spark's JVM sometimes.
    os.system("echo not of Python, and no line of JSON")
    try:
        print("it runs", file=sys.stderr, flush=True)
        time.sleep(3600)
    except KeyboardInterrupt:
        if {is_quick}:
            raise
        print("it was asked to end", file=sys.stderr, flush=True)
    time.sleep(3600)

if {in_import}:
    wait()
def work():
    app.calls[-1][1]["on_progress"](SimpleNamespace(global_clock=70))
    wait()

app = Played("app", "memory://played").play(work)
if __name__ == "__main__":
    sys.exit(main(["run", __file__ + ":app", *sys.argv[1:]]))
"""


ASKED = "it was asked to end"

IN_IMPORT = "__name__ != '__main__'"
"""The command imports the program under its own name."""


def signalled(folder: Path, *options: str, times: int = 1, **how: Any) -> tuple[int, list[dict[str, Any]], str]:
    """The status, the lines and the errors of a process that was sent SIGTERM while it ran."""
    program = folder / "signalled.py"
    program.write_text(PROGRAM.format(**{"seconds": 3600, "is_quick": True, "in_import": False} | how))
    out, err = folder / "out", folder / "err"
    with out.open("wb") as printed, err.open("wb") as told:
        process = start_guarded(
            [sys.executable, str(program), *options], cwd=ROOT, stdout=printed, stderr=told,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    until(lambda: "it runs" in err.read_text(), "the run", process, err)
    process.send_signal(signal.SIGTERM)
    for _ in range(1, times):
        until(lambda: ASKED in err.read_text(), "the first signal", process, err)
        # The first asked for an end, and the process goes on. Whether the program hears of the next one before it ends is open.
        assert (err.read_text().count(ASKED), process.poll()) == (1, None)
        process.send_signal(signal.SIGTERM)
    status = process.wait(PATIENCE)
    return status, [json.loads(line) for line in out.read_text().splitlines()], err.read_text()


@pytest.mark.parametrize("in_import", [True, False])
def test_sigterm_ends_a_process_before_its_run_has_begun(tmp_path: Path, in_import: bool) -> None:
    status, found, _ = signalled(tmp_path, in_import=in_import and IN_IMPORT)
    assert (status, found[-1]["result"]) == (command.TRY_AGAIN, "try again")
    status, found, _ = signalled(tmp_path, "--follow", in_import=in_import and IN_IMPORT)
    assert (status, found[-1]["result"]) == (command.DONE, "done")


def test_a_process_that_does_not_end_in_time_ends_at_once_and_says_so(tmp_path: Path) -> None:
    status, found, err = signalled(tmp_path, seconds=0.5, is_quick=False)
    assert (status, found[-1]["event"], found[-1]["status"]) == (command.TRY_AGAIN, "ended", command.TRY_AGAIN)
    assert found[-1]["error"] in err
    assert "did not end within 0.5 s" in err
    assert found[-1]["clock"] == 70


@pytest.mark.parametrize("times", [1, 2])
def test_a_process_whose_output_nobody_reads_ends_all_the_same(times: int, tmp_path: Path) -> None:
    program = tmp_path / "unread.py"
    program.write_text(UNREAD)
    reading, writing = os.pipe()
    process = start_guarded(
        [sys.executable, str(program)], cwd=ROOT, stdout=writing, stderr=writing,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SECONDS": str(0.5 if times == 1 else 3600)},
    )  # fmt: skip
    until((tmp_path / "it runs").exists, "the run", process)
    until(lambda: not select.select([], [writing], [], 0)[1], "a full pipe", process)
    os.close(writing)
    # A moment for a thread to wait in the handler.
    time.sleep(0.5)
    for _ in range(times - 1):
        process.send_signal(signal.SIGTERM)
        until((tmp_path / "it was asked").exists, "the first signal", process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == (command.TRY_AGAIN if times == 1 else 128 + signal.SIGTERM)
    os.close(reading)


UNREAD = """
import os, sys, threading, time
from pathlib import Path
from persistent_state.cli import run, stop_signals
from persistent_state.cli.commands import main
from persistent_state.cli.json_lines import LOGGER
from tests.cli.test_run import Played, Session

stop_signals.SECONDS = float(os.environ["SECONDS"])
stop_signals.REPEAT_SECONDS = 0
run.start_session = Session().make

def log():
    while True:
        LOGGER.info("x" * 1000)

def wait():
    threading.Thread(target=log, daemon=True).start()
    try:
        Path(__file__).with_name("it runs").touch()
        time.sleep(3600)
    except KeyboardInterrupt:
        Path(__file__).with_name("it was asked").touch()
    time.sleep(3600)

app = Played("app", "memory://played").play(wait)
if __name__ == "__main__":
    sys.exit(main(["run", __file__ + ":app"]))
"""


def test_a_second_signal_ends_a_process_at_once(tmp_path: Path) -> None:
    status, _, err = signalled(tmp_path, times=2, is_quick=False)
    assert status == 128 + signal.SIGTERM
    assert ASKED in err


def test_handlers_are_as_before_when_signals_are_no_longer_heard() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with stop_signals.heard(lambda number: None) as asked:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        assert asked.wait(PATIENCE)
    with stop_signals.heard(lambda number: None) as asked:
        time.sleep(0)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert (signal.set_wakeup_fd(-1), asked.is_set()) == (-1, False)


@pytest.fixture
def no_spark() -> Iterator[None]:
    """SIGINT as a process begins with it. A session of Spark that other tests have used takes it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize("is_in_a_run", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_twice_is_one_request(
    number: signal.Signals, is_in_a_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does `timeout`, which signals the process, and then the group of processes that it belongs to."""
    ended: list[int | None] = []
    # However long the machine takes, what comes next is the same request, and later another one.
    monkeypatch.setattr(stop_signals, "REPEAT_SECONDS", 3600.0)
    with stop_signals.heard(ended.append) as asked:
        with asked_to_stop() if is_in_a_run else pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
            signal.raise_signal(number)
        signal.raise_signal(number)
        assert asked.wait(PATIENCE)
        time.sleep(0.3)
        assert ended == []
        monkeypatch.setattr(stop_signals, "REPEAT_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        until(lambda: ended, "the end")
    assert ended == [number]


def test_no_signal_but_sigint_and_sigterm_asks_for_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a module may load something again at a SIGHUP."""
    heard: list[int] = []
    ended: list[int | None] = []
    hung_up = signal.signal(signal.SIGHUP, lambda number, frame: heard.append(number))
    monkeypatch.setattr(stop_signals, "SECONDS", 0.5)
    monkeypatch.setattr(stop_signals, "REPEAT_SECONDS", 0.0)
    try:
        with stop_signals.heard(ended.append) as asked:
            signal.raise_signal(signal.SIGHUP)
            assert not asked.wait(0.3)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
            assert asked.wait(PATIENCE)
            signal.raise_signal(signal.SIGHUP)
            until(lambda: ended, "the end")
    finally:
        signal.signal(signal.SIGHUP, hung_up)
    assert heard == [signal.SIGHUP] * 2
    assert ended == [None]


def test_help_and_docs_tell_every_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    told = dict(re.findall(r"^  (\d+) +([a-z ]+):", capsys.readouterr().out, re.MULTILINE))
    assert told == {str(status): result for status, result in command.RESULTS.items()}
    page = (ROOT / "docs/command-line.md").read_text("utf-8")
    rows = {
        int(status): (result, text)
        for status, result, text in re.findall(r"^\| (\d+) \| ([a-z ]+) \| (.*)$", page, re.M)
    }
    assert {status: result for status, (result, _) in rows.items()} == command.RESULTS
    # Each class that a user can catch is named with its status.
    public = {name for name in STATUSES if name in persistent_state.__all__}
    named = {name: status for status, (_, text) in rows.items() for name in re.findall(r"`(\w+Error)`", text)}
    assert named == {name: STATUSES[name] for name in public}
    assert f"within {stop_signals.SECONDS:g} s" in page
