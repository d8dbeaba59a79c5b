"""The command line: what it prints of the kept store is pinned, and every misuse is one sentence and a status."""

from __future__ import annotations

import configparser
import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from monoids import Average, Max, Monoid, Struct, Sum
from persistent_state import NonWindowState, PersistentTask, SlidingWindow, WindowState, read_state
from persistent_state.cli.commands import main
from persistent_state.event_time.durations import show_duration
from persistent_state.formatting import read_clock, show_clock
from persistent_state.partials.waiting import Rows
from persistent_state.protocol.global_clock import Keeping
from persistent_state.show.words import size
from persistent_state.state import KeptState
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from persistent_state.windows import UntilPassed
from tests import core
from tests.fixtures.write_store import Totals

ROOT = Path(__file__).parents[2]
STORE = "tests/fixtures/store-v1"

EXAMPLES = [
    (command.split(), text)
    for command, text in re.findall(
        rf"^```\n\$ persistent-state ([^\n]*{STORE}[^\n]*)\n(.*?)^```",
        (ROOT / "docs/command-line.md").read_text("utf-8"),
        re.S | re.M,
    )
]
"""What docs/command-line.md says that is printed."""

NOTES_AT_160 = """\
shop     value
-------  ------------------------------------------------------------
Bergen   ["n1","n4","n7","n10","n16","n19","n22","n28","n31","n34"...
Ålesund  ["n0","n3","n6","n9","n12","n15","n18","n21","n24","n27",...

2 of 3 keys at 1970-01-01T00:00:00.000160Z (160)
"""

TOTALS_CSV = """\
shop,item,value.sales,value.total
Bergen,1,5,631
Bergen,,8,1024
Ålesund,1,8,1022
Ålesund,,8,1028
,1,7,879
,,8,1020
"""


def test_the_docs_have_an_example_of_each_command() -> None:
    assert {command[0] for command, _ in EXAMPLES} == {"show", "top", "metrics", "graph", "state", "late", "verify"}
    assert len(EXAMPLES) == 9


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        *EXAMPLES,
        (["state", STORE, "app", "Totals", "--format", "csv"], TOTALS_CSV),
        (["state", STORE, "app", "Notes", "--limit", "2", "--clock", "160"], NOTES_AT_160),
        (["state", STORE, "app", "Notes", "--limit", "2", "--clock", "1970-01-01T00:00:00.000160Z"], NOTES_AT_160),
    ],
)
def test_what_is_printed_of_the_kept_store(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    command, _, head = " ".join(arguments).partition(" | ")
    assert main(command.split()) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[: int(head.removeprefix("head -")) if head else None] == text.splitlines()
    assert err == ""


def test_json_is_for_programs_and_has_all(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)

    def told(*arguments: str) -> str:
        assert main([*arguments, "--json"]) == 0
        return capsys.readouterr().out

    (app,) = json.loads(told("show", STORE))
    assert app == json.loads(told("show", STORE, "app"))
    assert (app["application"], app["clock"], app["retained"], app["entry"]) == ("app", 220, [160, 200, 220], 16)
    assert [task["late_and_bad"] for task in app["tasks"]] == [{"late": 1, "no timestamp": 2}] * 2
    assert app["tasks"][1]["channels"] == {
        "count": 1, "ended": 0, "silent": 0, "slowest": "", "slowest_input": "", "slowest_at": 235,
        "newest_at": 235,
    }  # fmt: skip
    rows = [json.loads(line) for line in told("state", STORE, "app", "Totals").splitlines()]
    assert sorted(rows, key=repr) == sorted(read_state(STORE, "app", Totals()).to_pylist(), key=repr)
    assert main(["late", STORE, "app", "Totals", "--limit", "2", "--json"]) == 0
    late = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["reason"], row["position"], row["row"]["price"]) for row in late] == [
        ("no timestamp", 13, 113),
        ("late", 25, 125),
    ]
    verified = json.loads(told("verify", STORE))
    assert (verified["entries"], verified["files"], verified["problems"]) == (16, 36, [])


def test_problems_are_told_by_file_and_make_the_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Path(shutil.copytree(ROOT / STORE, tmp_path / "store"))
    (store / "app/log/00000000000000000003.json").write_text("{}")
    (store / "app/runs/Notes/notes.txt").write_text("mine")
    assert main(["verify", str(store)]) == 1
    told = capsys.readouterr().out
    assert told.startswith("app/log/00000000000000000003.json\n  it is not what was written, or of a later format\n\n")
    assert "1 file that no log entry names" in told
    assert "\n  app/runs/Notes/notes.txt\n" in told
    assert told.endswith(": 1 problem\n")
    assert main(["verify", str(store), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["unreferenced"] == ["app/runs/Notes/notes.txt"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", STORE, "shop"], "/store-v1; it has app."),
        (["show", "tests"], "there is no application in store="),
        (["show", "ftp://x/y"], "ftp"),
        (["verify", STORE, "shop"], "there is no application shop in store="),
        (["verify", "tests"], "there is no application in store="),
        (["verify", "tests", "--json"], "there is no application in store="),
        (["verify", "no-such-folder"], "there is no application in store="),
        (["state", STORE, "app"], "TASK is missing; application app has Notes, Totals."),
        (["late", STORE, "app", "Sales"], "application app has no task Sales; it has Notes, Totals."),
        (
            ["state", STORE, "app", "Notes", "--clock", "2026"],
            "of task=Notes is not retained (2026 is taken for microseconds; write 2026-01-01 for the year); read clock=",
        ),
        (["state", STORE, "app", "Sales"], "application app has no task Sales; it has Notes, Totals."),
        (
            ["state", STORE, "app", "Notes", "--clock", "-7"],
            "clock=1969-12-31T23:59:59.999993Z (-7) of task=Notes is not retained",
        ),
        (
            ["state", STORE, "app", "Notes", "--clock", "noon"],
            "clock='noon' is not a time, and keeps no clock of app; give microseconds",
        ),
        (["state", STORE, "app", "Notes", "--monoid", "no.such:Thing"], "monoid=no.such:Thing: ModuleNotFoundError"),
        (["state", STORE, "app", "Notes", "--monoid", "json:loads"], "name an instance of Monoid"),
        (["state", STORE, "app", "Notes", "--monoid", "json"], "name it as module:name"),
        (["show", STORE, "--storage-options", "secret=1"], "--storage-options=... is not a JSON object"),
        (["show", STORE, "--storage-options", "[1]"], "--storage-options=... is not a JSON object"),
        (["show", STORE, "--storage-options", "@no-such-file"], "no-such-file"),
        (["show", STORE, "--storage-options", '{"key": "s3cr3t"}'], "storage options ['key'] mean nothing for url="),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_status_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("persistent-state: ")
    assert said in err
    assert "s3cr3t" not in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["show"], ["rewind", "x"], ["state", "x", "y", "z", "--limit", "-1"]])
def test_a_wrong_use_says_the_right_one(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: persistent-state" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "does"),
    [
        ("show", "Show the applications of a store, or the tasks of one."),
        ("state", "Show the state of a task at a clock."),
        ("branch", "Make another application of one as it was at a kept clock."),
        ("backup", "Copy what is new at the newest clock to a store of backups."),
        ("verify", "Check every checksum and every reference of a store."),
    ],
)
def test_the_help_of_a_command_says_what_it_does(command: str, does: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert f"\n\n{does}\n\n" in out
    assert "--storage-options JSON|@FILE" in out


def test_storage_options_come_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = tmp_path / "options.json"
    options.write_text('{"key": "s3cr3t"}')
    plan = core.plan_of(Totals(), pa.schema([("ts", pa.int64()), ("shop", pa.string()), ("item", pa.int64())]))
    core.start(Log(plan.files, "app"), [plan])
    assert main(["show", plan.files.url, "--storage-options", f"@{options}"]) == 0
    assert "none yet" in capsys.readouterr().out


def run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=False)


def test_it_runs_as_a_module_and_as_the_script_that_is_installed() -> None:
    done = run("-m", "persistent_state", "state", STORE, "app", "Totals")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout in [text for _, text in EXAMPLES]
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    name, _, place = setup["options.entry_points"]["console_scripts"].strip().partition(" = ")
    assert name == "persistent-state"
    module, _, function = place.partition(":")
    assert getattr(import_module(module), function) is main


def test_it_needs_no_spark() -> None:
    commands = [["show", STORE, "app"], ["state", STORE, "app", "Notes"], ["verify", STORE]]
    program = (
        f"import sys\nfrom persistent_state.cli.commands import main\nassert [main(c) for c in {commands}] == [0, 0, 0]\n"
        "assert not {'pyspark', 'py4j'} & set(sys.modules)"
    )
    done = run("-c", program)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_goes_away_ends_it_quietly() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "persistent_state", "state", STORE, "app", "Totals", "--json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.parametrize(
    ("command", "said"), [(["verify", STORE], "52 files, app/"), (["state", STORE, "app", "Notes"], "rows of 14 runs")]
)
def test_progress_is_told_on_a_terminal_and_wiped_out(command: list[str], said: str) -> None:
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "persistent_state", *command], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=theirs
    ) as process:
        os.close(theirs)
        told = b""
        with suppress(OSError):  # a terminal ends so when nobody writes to it any more
            while data := os.read(ours, 10_000):
                told += data
    os.close(ours)
    assert process.returncode == 0
    assert said in told.decode()
    assert told.endswith(b"\r\x1b[K")


OWN = """
import pyarrow as pa
from monoids import Monoid

class Chance(Monoid):
    type = pa.int64()
    zero = 1

    def plus(self, a, b):
        return a * b

chance = Chance()
"""


class Chance(Monoid[int]):
    type = pa.int64()
    zero = 1

    def plus(self, a: int, b: int) -> int:
        return a * b


class Kept(PersistentTask):
    def __init__(self, key: Any, value: str, monoid: Monoid[Any]) -> None:
        self.key, self.value, self.monoid = key, value, monoid

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(self.monoid)


ROWS = pa.schema([("ts", pa.int64()), ("k", pa.string()), ("n", pa.int64())])


def write(store: Path, task: PersistentTask, rows: pa.RecordBatch) -> None:
    plan = core.plan_of(task, rows.schema, files=open_files(str(store)), shards=2)
    log = Log(plan.files, "app")
    core.start(log, [plan])
    core.play(log, plan, rows)


def test_a_monoid_of_the_user_is_imported_only_because_the_user_names_it(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    updates = pa.array([{"p": 3}, {"p": 5}, {"p": 7}])
    rows = pa.RecordBatch.from_pydict({"ts": [1, 2, 99], "n": updates})
    write(tmp_path / "store", Kept(None, "n", Struct(p=Chance())), rows)
    command = ["-m", "persistent_state", "state", "store", "app", "Kept", "--json"]
    refused = run(*command, cwd=tmp_path)
    assert refused.returncode == 2
    assert "task=Kept: monoid=Chance of int64 is not one of the package monoids; give an instance" in refused.stderr
    for name in ("own:Chance", "own:chance"):
        done = run(*command, "--monoid", name, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, '{"value":{"p":15}}\n'), done.stderr


def test_presented_values_are_shown_where_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(
        "import pyarrow as pa\nfrom monoids import Aggregator, Sum\nprint('imported')\n"
        "doubled = Aggregator(abs, Sum(), lambda total: print('shown') or 2.0 * total, pa.float64())\n"
    )
    monkeypatch.chdir(tmp_path)
    rows = pa.RecordBatch.from_pydict({"ts": [1, 2, 99], "n": [3, 4, 5]})
    write(tmp_path / "means", Kept(None, "n", Average(pa.int64())), rows)
    write(tmp_path / "sums", Kept(None, "n", Sum()), rows)
    for arguments, value in (
        (["means"], {"n": 2, "sum": 7}),
        (["means", "--present"], 3.5),
        (["sums", "--present"], 7),
        (["sums", "--present", "--monoid", "mine:doubled"], 14.0),
        (["sums", "--monoid", "mine:doubled"], 7),
    ):
        store, *more = arguments
        assert main(["state", store, "app", "Kept", "--json", *more]) == 0
        out, err = capsys.readouterr()
        assert json.loads(out) == {"value": value}
        # What the user's code prints stands nowhere between.
        assert ("shown" in err) == (value == 14.0)


def test_keys_of_every_type_are_shown_in_their_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys: dict[str, tuple[pa.DataType, list[Any], list[str]]] = {
        "text": (pa.string(), ["b\n\x1b[31m", "東京", "b"], ["b", '"b\\n\\u001b[31m"', "東京"]),
        "flag": (pa.bool_(), [True, False], ["false", "true"]),
        "double": (pa.float64(), [1.5, float("nan"), -1.0, float("inf")], ["-1.0", "1.5", "inf", "nan"]),
        "cents": (pa.decimal128(9, 2), [Decimal("2.50"), Decimal(-1)], ["-1.00", "2.50"]),
        "bytes": (pa.binary(), [b"\xff", b""], ["", "/w=="]),
        "day": (pa.date32(), [date(2020, 2, 29), date(1, 1, 1)], ["0001-01-01", "2020-02-29"]),
        "at": (
            pa.timestamp("us", "UTC"),
            [datetime(1960, 1, 1, 0, 0, 0, 1, timezone.utc), 2**62],
            ["1960-01-01T00:00:00.000001Z", "148108-07-06T14:00:27.387904Z"],
        ),
        "local": (pa.timestamp("us"), [datetime(2020, 1, 1, 12)], ["2020-01-01T12:00:00"]),
        "big": (pa.uint64(), [2**64 - 1, 0], ["0", str(2**64 - 1)]),
    }
    for name, (type, values, shown) in keys.items():
        column = pa.array([*values, None], type)
        # The last message moves the clock above the others.
        column = pa.concat_arrays([column, column[:1]])
        times = [0] * len(values) + [0, 99]
        store = tmp_path / name
        write(store, Kept(name, "n", Max()), pa.RecordBatch.from_pydict({"ts": times, name: column, "n": times}))
        assert main(["state", str(store), "app", "Kept"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.rpartition(" ")[0].strip() for line in lines[2:-2]] == [*shown, "null"]
        assert main(["state", str(store), "app", "Kept", "--format", "csv"]) == 0
        found = [row[0] for row in csv.reader(io.StringIO(capsys.readouterr().out, newline=""))][1:]
        assert found == [json.loads(text) if text.startswith('"') else text for text in [*shown, ""]]


def test_rows_that_wait_are_no_windows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Waiting(Kept):
        def persistent_state(self) -> Any:
            return KeptState(Rows(pa.struct([("n", pa.int64())])), UntilPassed())

    rows = pa.RecordBatch.from_pydict({"ts": [85, 95, 99], "k": ["a", "a", "b"], "row": [{"n": 1}, {"n": 2}, {"n": 3}]})
    write(tmp_path / "store", Waiting("k", "row", Max()), rows)
    assert main(["state", str(tmp_path / "store"), "app", "Waiting"]) == 0
    end = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r"\d rows? at 1970-01-01T00:00:00.000090Z \(90\)", end)


def test_windows_are_shown_by_their_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Windowed(Kept):
        def persistent_state(self) -> Any:
            return WindowState(self.monoid, SlidingWindow("20 microseconds", "10 microseconds"))

    rows = pa.RecordBatch.from_pydict({"ts": [85, 95, 99], "k": ["a", "a", "b"]})
    write(tmp_path / "store", Windowed("k", "ts", Max()), rows)
    assert main(["show", str(tmp_path / "store"), "app"]) == 0
    assert "Max<int64>, windows of 20 microseconds each 10 microseconds" in capsys.readouterr().out
    assert main(["state", str(tmp_path / "store"), "app", "Windowed"]) == 0
    _, _, row, _, end = capsys.readouterr().out.splitlines()
    assert row.split() == ["a", "1970-01-01T00:00:00.000080Z", "1970-01-01T00:00:00.000100Z", "85"]
    assert end == "1 open window at 1970-01-01T00:00:00.000090Z (90); closed ones were given out"
    assert main(["state", str(tmp_path / "store"), "app", "Windowed", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "k": "a",
        "window_start": "1970-01-01T00:00:00.000080Z",
        "window_end": "1970-01-01T00:00:00.000100Z",
        "value": 85,
    }


@pytest.mark.parametrize(
    ("text", "clock"),
    [
        ("-7", -7),
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01.5", 1_500_000),
        ("1970-01-01T00:00:00.000001Z", 1),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T23:59:59Z", -1_000_000),
    ],
)
def test_clocks_are_read_as_numbers_and_as_iso_times(text: str, clock: int) -> None:
    assert read_clock(text) == clock
    assert read_clock(show_clock(clock)) == clock


def test_clocks_that_stay_for_outputs_are_told_from_those_to_go_back_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = replace(core.plan_of(Kept("k", "n", Max()), ROWS, files=open_files(str(tmp_path))), outputs=("table",))
    log = Log(plan.files, "app")
    core.start(log, [plan])
    for ts in range(15, 60, 10):
        row = pa.RecordBatch.from_pylist([{"ts": ts, "k": "a", "n": ts}], ROWS)
        core.play(log, plan, row, keeping=Keeping(2, 0))
    assert main(["show", str(tmp_path), "app"]) == 0
    shown = capsys.readouterr().out.splitlines()
    first = next(i for i, line in enumerate(shown) if line.startswith("kept"))
    assert shown[first : first + 7] == [
        "kept         1970-01-01T00:00:00.000040Z  40",
        "             1970-01-01T00:00:00.000050Z  50",
        "retained     1970-01-01T00:00:00.000010Z  10",
        "             1970-01-01T00:00:00.000020Z  20",
        "             1970-01-01T00:00:00.000030Z  30",
        "             until all outputs have them; only a kept clock can be gone back to",
        "interval     10 microseconds",
    ]


def test_clocks_are_kept_and_released_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = core.plan_of(Kept("k", "n", Max()), ROWS, files=open_files(str(tmp_path)))
    log, keeping = Log(plan.files, "app"), Keeping(2, 0, ((100, 10_000),))
    core.start(log, [plan])

    def play(begin: int, end: int) -> None:
        for ts in range(begin, end, 10):
            row = pa.RecordBatch.from_pylist([{"ts": ts, "k": "a", "n": ts}], ROWS)
            core.play(log, plan, row, keeping=keeping)

    def ran(*command: str) -> str:
        assert main([command[0], str(tmp_path), "app", *command[1:]]) == 0
        return capsys.readouterr().out

    play(15, 60)
    told = ran("keep", "--name", "before", "--at", "1970-01-01T00:00:00.000040")
    assert told == "clock=1970-01-01T00:00:00.000040Z (40) is kept as 'before'\n"
    assert json.loads(ran("keep", "--name", "then", "--json")) == {"application": "app", "clock": 50, "name": "then"}
    ran("keep", "--name", "and", "--at", "50")
    play(65, 2000)
    shown = ran("show").splitlines()
    first = next(i for i, line in enumerate(shown) if line.startswith("kept"))
    assert shown[first : first + 6] == [
        "kept         1970-01-01T00:00:00.000040Z  40  before",
        "             1970-01-01T00:00:00.000050Z  50  and, then",
        "             ... 19 more ...",
        "             1970-01-01T00:00:00.001980Z  1980",
        "             1970-01-01T00:00:00.001990Z  1990",
        "interval     10 microseconds",
    ]
    told = json.loads(ran("show", "--json"))
    assert told["kept"][:2] == [{"clock": 40, "names": ["before"]}, {"clock": 50, "names": ["and", "then"]}]
    assert [each["clock"] for each in told["kept"][2:]] == [*range(100, 2000, 100), 1980, 1990]
    assert told["timeline"] == 0
    assert "a,35" in ran("state", "Kept", "--clock", "40", "--format", "csv")
    assert "a,35" in ran("state", "Kept", "--clock", "before", "--format", "csv")
    assert json.loads(ran("keep", "--name", "too", "--at", "before", "--json"))["clock"] == 40
    assert json.loads(ran("branch", "next", "--at", "before", "--json"))["clock"] == 40
    ran("release", "--name", "too")
    assert ran("release", "--name", "then") == "clock=1970-01-01T00:00:00.000050Z (50) is no longer kept as 'then'\n"
    assert json.loads(ran("show", "--json"))["kept"][1] == {"clock": 50, "names": ["and"]}
    for command in (["keep", "--name", "before", "--at", "100"], ["release", "--name", "then"]):
        assert main([command[0], str(tmp_path), "app", *command[1:]]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_numbers_are_shown_as_people_say_them() -> None:
    assert [show_duration(n) for n in (1, 1_500, 60_000_000, 7_200_000_000, 86_400_000_000)] == [
        "1 microsecond", "1,500 microseconds", "1 minute", "2 hours", "1 day",
    ]  # fmt: skip
    assert [size(n) for n in (0, 999, 1000, 999_949, 999_999, 2**40)] == [
        "0 B", "999 B", "1.0 kB", "999.9 kB", "1.0 MB", "1.1 TB",
    ]  # fmt: skip
    assert show_clock(-(2**63)) == show_clock(None) == "none yet"
    assert show_clock(2**62) == str(2**62)


def test_an_application_is_branched_within_a_store_and_to_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stores = [str(tmp_path / name) for name in ("blue", "green")]
    write(
        Path(stores[0]),
        Kept("k", "n", Max()),
        pa.RecordBatch.from_pydict({"ts": [5, 25], "k": ["a"] * 2, "n": [5, 25]}, ROWS),
    )

    def ran(*arguments: str) -> str:
        assert main(["branch", stores[0], "app", *arguments]) == 0
        return capsys.readouterr().out

    clock = "1970-01-01T00:00:00.000020Z"
    told = ran("next", "--at", "1970-01-01T00:00:00.000020")
    assert told == f"application=next is a branch of application=app at clock={clock} (20)\n"
    found = json.loads(ran("app", "--to", stores[1], "--json"))
    assert found == {"application": "app", "clock": 20, "new": "app", "store": stores[1]}
    for store, name in ((stores[0], "next"), (stores[1], "app")):
        assert read_state(store, name, "Kept").to_pylist() == [{"k": "a", "value": 5}]
        assert main(["verify", store]) == 0
    capsys.readouterr()
    for arguments, said in (
        (["next"], "application=next is already there in store="),
        (
            ["new", "--at", "30"],
            "clock=1970-01-01T00:00:00.000030Z (30) is not kept, so nothing can branch from it; take clock=",
        ),
        (["new", "--to", stores[1], "--to-storage-options", "[]"], "--to-storage-options=... is not a JSON object"),
    ):
        assert main(["branch", stores[0], "app", *arguments]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.rows_in_files
def test_progress_of_a_branch_is_told_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    write(
        tmp_path,
        Kept("k", "n", Max()),
        pa.RecordBatch.from_pydict({"ts": [5, 25], "k": ["a", "b"], "n": [5, 25]}, ROWS),
    )
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    assert main(["branch", str(tmp_path), "app", "next"]) == 0
    *told, last = re.findall(r"([\d.]+ k?B) of ([\d.]+ k?B)", terminal.getvalue())
    assert last[0] == last[1]
    assert all(size == last[1] for _, size in told)
