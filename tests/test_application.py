"""A wrong set-up is refused with one sentence that names the value and says what to do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persistent_state
from monoids import Max, Sum
from persistent_state import (
    Application,
    DamagedError,
    InvalidInputError,
    Local,
    PersistentTask,
    RateSource,
    StateError,
    application,
    errors,
    open_store,
)
from persistent_state.batch.plan import Plan
from persistent_state.event_time.clocks import Settings
from persistent_state.event_time.durations import duration
from persistent_state.formatting import full_clock
from persistent_state.open_state import read_state
from persistent_state.protocol.commits import close
from persistent_state.protocol.global_clock import Keeping
from persistent_state.run import running
from persistent_state.store.files import Files, MemoryFiles, open_files
from persistent_state.store.log import Log
from tests import core
from tests.setup.tasks import ROWS, ByMessage, Task, Visits, refused


class TestApplications:
    @pytest.mark.parametrize(
        "text", ["10", "ten seconds", "1.5 hours", "-1 seconds", "3 fortnights", "", "10s", 10, None]
    )
    def test_a_duration_that_is_none(self, text: Any) -> None:
        names = ["checkpoint_interval", "allowed_delay", "max_ahead", "grace"]
        if text is not None:
            names += ["idle_after", "max_jump"]
        for name in names:
            refused(
                partial(Application, "app", "store", **{name: text}),
                f'{name}={text!r} is not a duration; give text such as "10 seconds", a whole number and one of microseconds, '
                "milliseconds, seconds, minutes, hours, days, or a datetime.timedelta.",
            )

    def test_a_duration_is_a_number_and_a_unit(self) -> None:
        said = ("1 microsecond", "10 seconds", " 2 hours ", "0 days", timedelta(hours=2), timedelta(microseconds=1))
        assert [duration("length", each) for each in said] == [1, 10_000_000, 7_200_000_000, 0, 7_200_000_000, 1]

    def test_a_duration_beyond_event_time(self) -> None:
        refused(
            lambda: Application("app", "store", allowed_delay="99999999 days"),
            "allowed_delay='99999999 days'; it must be at least 0 and at most 53375995 days.",
        )
        refused(
            lambda: Application("app", "store", allowed_delay=timedelta(seconds=-1)),
            f"allowed_delay={timedelta(seconds=-1)!r}; it must be at least 0 and at most 53375995 days.",
        )

    @pytest.mark.parametrize("name", ["checkpoint_interval", "idle_after", "max_jump"])
    def test_nothing_where_something_is_needed(self, name: str) -> None:
        refused(
            lambda: Application("app", "store", **{name: "0 seconds"}),  # type: ignore[arg-type]
            f"{name}='0 seconds'; it must be longer than 0.",
        )

    def test_numbers_below_one(self) -> None:
        for shards in (0, -1):
            refused(
                partial(Application, "app", "store", shards=shards), f"shards={shards}; there must be at least one."
            )
        refused(
            lambda: Application("app", "store", retained_checkpoints=0),
            "retained_checkpoints=0; keep at least one, a restart needs it.",
        )

    @pytest.mark.parametrize(
        ("rule", "told"),
        [
            (
                ("1 hour",),
                'retain has (\'1 hour\',); give pairs of durations (every, span), such as ("1 hour", "2 days").',
            ),
            ("1h", 'retain has \'1h\'; give pairs of durations (every, span), such as ("1 hour", "2 days").'),
            (("0 hours", "2 days"), "retain='0 hours'; it must be longer than 0."),
            (
                ("2 days", "1 hour"),
                "retain has ('2 days', '1 hour'), which keeps nothing: the second duration is to be at least the first.",
            ),
        ],
    )
    def test_rules_of_which_clocks_are_kept(self, rule: Any, told: str) -> None:
        refused(lambda: Application("app", "store", retain=[("1 hour", "2 days"), rule]), told)

    def test_a_grace_in_which_nobody_can_read(self) -> None:
        refused(
            lambda: Application("app", "store", grace="59 seconds"),
            "grace='59 seconds' is too short: others may still read what was replaced; give at least '1 minute'.",
        )

    def test_a_grace_in_which_a_store_may_list_its_files_late(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class FarFiles(MemoryFiles):
            near = False

        monkeypatch.setattr(application, "open_files", FarFiles)
        app = Application("app", "memory://far", grace="9 minutes").add(Visits(), RateSource(1))
        refused(
            lambda: app.start(Local()),
            "grace='9 minutes' is too short for store='memory://far', which is behind a network: others may still read what "
            "was replaced; give at least '10 minutes'.",
        )

    def test_no_task_at_all(self) -> None:
        spark: Any = None
        refused(lambda: Application("app", "store").start(spark), "application app has no task; add one.")

    def test_a_part_of_an_ordered_task(self) -> None:
        app = Application("app", "store").add(Visits(), ROWS)
        for argument, part in (("reset", "Visits.messages"), ("rebuild", "Visits.rows")):
            refused(
                lambda argument=argument, part=part: app._with_parts(argument, ["Visits", part]),
                f"{argument}={part!r} is a part of task=Visits; name that.",
            )
        assert app._with_parts("reset", ["Visits", "other"]) == ["Visits.messages", "Visits", "Visits.rows", "other"]


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "local" else f"memory://{tmp_path}"


ROW = pa.schema([("ts", pa.int64()), ("word", pa.string()), ("n", pa.int64()), ("m", pa.float64())])


def rows(*stamps: int) -> pa.RecordBatch:
    count = len(stamps)
    columns = [pa.array(stamps, pa.int64()), pa.array(["a"] * count), pa.array([1] * count), pa.array([0.5] * count)]
    return pa.RecordBatch.from_arrays(columns, schema=ROW)


class Ran:
    """An application whose tasks have run to a clock."""

    def __init__(self, store: str, *tasks: PersistentTask) -> None:
        self.files = open_files(store)
        self.log = Log(self.files, "app")
        self.keeping = Keeping(clocks=2)
        self.plans = self.start(*tasks)

    def start(self, *tasks: PersistentTask, reset: tuple[str, ...] = ()) -> list[Plan]:
        plans = [core.plan_of(task, ROW, files=self.files) for task in tasks]
        for plan in plans:
            core.check(plan)
        core.start(self.log, plans, reset=reset)
        return plans

    def play(self, *stamps: int) -> None:
        for plan in self.plans:
            entry = core.play(self.log, plan, rows(*stamps), keeping=self.keeping)
        close(self.log, entry.epoch, now=0, keeping=self.keeping)


class TestStores:
    @pytest.mark.parametrize(
        ("task", "what", "was", "now"),
        [
            (
                Task(monoid=Max()),
                "monoid",
                "Sum(int64)",
                "Max(int64)",
            ),
            (
                Task(monoid=Sum(pa.float64()), value="m"),
                "monoid",
                "Sum(int64)",
                "Sum(double)",
            ),
            (Task(key=None), "key", "word: string", "none"),
            (
                Task(key="n"),
                "key",
                "word: string",
                "n: int64",
            ),
            (
                Task(key=("word", "n")),
                "key",
                "word: string",
                "word: string, n: int64",
            ),
        ],
    )
    def test_one_written_by_another_monoid_or_key(self, store: str, task: Task, what: str, was: str, now: str) -> None:
        ran = Ran(store, Task())
        ran.play(5, 25)
        before = ran.log.numbers()
        refused(
            lambda: ran.start(task),
            f"task=totals: the store was written with {what}={was}, the task has {now}. {core.ways('totals')}",
        )
        assert ran.log.numbers() == before
        ran.start(task, reset=("totals",))
        assert ran.log.numbers() == [*before, before[-1] + 1]

    def test_a_monoid_written_by_other_code_is_the_same_monoid(self, store: str) -> None:
        class Total(Sum):  # type: ignore[type-arg]
            name = "Sum"

        Ran(store, Task()).play(5, 25)
        Ran(store, ByMessage(value=None, monoid=Total()))

    def test_a_task_that_returns_after_the_clock_moved_on(self, store: str) -> None:
        ran = Ran(store, Task(), Task(name="other"))
        ran.play(5, 25)
        ran.plans = ran.start(Task(name="other"))
        ran.play(45, 55)
        ran.play(65)
        refused(
            lambda: ran.start(Task(), Task(name="other")),
            f"task=totals left at clock={full_clock(30)}, and the oldest that is retained is "
            f"{full_clock(60)}. {core.ways('totals')}",
        )
        # Gone, it stays readable; reset, it starts from zero at the clock.
        assert read_state(store, "app", Task()).to_pylist() == [{"word": "a", "value": 2}]
        ran.plans = ran.start(Task(), Task(name="other"), reset=("totals",))
        assert read_state(store, "app", Task()).num_rows == 0
        ran.play(85)
        assert read_state(store, "app", Task()).to_pylist() == [{"word": "a", "value": 1}]
        assert read_state(store, "app", Task(name="other")).to_pylist() == [{"word": "a", "value": 6}]

    def test_a_task_that_returns_while_its_clock_is_retained_catches_up(self, store: str) -> None:
        ran = Ran(store, Task(), Task(name="other"))
        ran.play(5, 25)
        (other,) = ran.start(Task(name="other"))
        core.play(ran.log, other, rows(55), keeping=ran.keeping)
        returned, other = ran.start(Task(), Task(name="other"))
        assert open_store(store).application("app").clocks() == [30, 50]
        # Until it is there, the others' clocks move and the global one waits; what it held when it left stays readable.
        entry = core.play(ran.log, other, rows(55, 75), keeping=ran.keeping)
        assert (entry.clock, entry.flow_of("other").progress.clock, entry.flow_of("totals").progress.clock) == (
            50,
            70,
            30,
        )
        entry = core.play(ran.log, returned, rows(45), keeping=ran.keeping)
        assert (entry.clock, entry.flow_of("totals").progress.clock) == (50, 40)
        assert read_state(store, "app", Task()).to_pylist() == [{"word": "a", "value": 2}]
        with pytest.raises(
            InvalidInputError, match=r"task=totals has reached clock=.*Z \(40\); read clock=.*Z \(50\) once"
        ):
            read_state(store, "app", Task(), clock=50)
        # A start in the middle of it takes up where it stands.
        returned, other = ran.start(Task(), Task(name="other"))
        entry = core.play(ran.log, returned, rows(45, 75), keeping=ran.keeping)
        assert (entry.clock, entry.flow_of("totals").progress.clock) == (50, 70)
        assert read_state(store, "app", Task(), clock=50).to_pylist() == [{"word": "a", "value": 3}]
        entry = core.play(ran.log, other, rows(55, 75), keeping=ran.keeping)
        assert entry.clock == 70
        assert read_state(store, "app", Task()).to_pylist() == [{"word": "a", "value": 3}]

    def test_a_task_that_returns_to_the_clock_it_left_at_goes_on(self, store: str) -> None:
        ran = Ran(store, Task(), Task(name="other"))
        ran.play(5, 25)
        ran.start(Task(name="other"))
        ran.plans = ran.start(Task(), Task(name="other"))
        ran.play(45)
        assert read_state(store, "app", Task()).to_pylist() == [{"word": "a", "value": 3}]

    def test_an_unknown_task_to_start_anew(self, store: str) -> None:
        refused(
            lambda: Ran(store, Task()).start(Task(), Task(name="other"), reset=("totale",)),
            "reset names task=totale, which is not added; the tasks are totals, other.",
        )

    def test_a_clock_that_is_not_retained(self, store: str) -> None:
        ran = Ran(store, Task())
        for stamp in (5, 25, 45):
            ran.play(stamp)
        assert open_store(store).application("app").clocks() == [40, 50]
        assert read_state(store, "app", Task(), clock=40).to_pylist() == [{"word": "a", "value": 2}]
        low, high = f"clock={full_clock(40)}", f"clock={full_clock(50)}"
        for clock, nearest in ((10, low), (45, f"{low} or {high}"), (60, high)):
            refused(
                partial(read_state, store, "app", Task(), clock=clock),
                f"clock={full_clock(clock)} of task=totals is not retained; read {nearest}. "
                "open_store(store).application(application).clocks() and `persistent-state show STORE APP` list all.",
            )

    def test_a_clock_before_a_task_was_there(self, store: str) -> None:
        Ran(store, Task()).play(5, 25)
        ran = Ran(store, Task(), Task(name="other"))
        ran.play(45)
        refused(
            lambda: read_state(store, "app", Task(name="other"), clock=10),
            f"clock={full_clock(10)} of task=other is not retained; read clock={full_clock(40)}. "
            "open_store(store).application(application).clocks() and `persistent-state show STORE APP` list all.",
        )
        assert read_state(store, "app", Task(name="other"), clock=40).num_rows == 0

    def test_a_clock_that_is_listed_and_is_from_before_a_task_began(self, store: str) -> None:
        ran = Ran(store, Task())
        ran.play(5)
        ran.play(25)
        ran.start(Task(), Task(name="other"))
        before, began = open_store(store).application("app").clocks()
        refused(
            lambda: read_state(store, "app", Task(name="other"), clock=before),
            f"task=other began, or was rebuilt or reset, after clock={full_clock(before)}; read "
            f"clock={full_clock(began)}.",
        )
        assert read_state(store, "app", Task(name="other"), clock=began).num_rows == 0

    def test_a_clock_from_before_a_task_was_reset(self, store: str) -> None:
        ran = Ran(store, Task())
        ran.play(5)
        ran.play(25)
        before, newest = open_store(store).application("app").clocks()
        states = {clock: read_state(store, "app", Task(), clock=clock).to_pylist() for clock in (before, newest)}
        ran.start(Task(), reset=("totals",))
        for clock, state in states.items():
            assert read_state(store, "app", Task(), clock=clock).to_pylist() == state != []
        assert read_state(store, "app", Task()).num_rows == 0

    def test_an_unknown_application_or_task(self, store: str) -> None:
        ran = Ran(store, Task(), Task(name="other"))
        ran.play(5)
        for read in (
            lambda: read_state(store, "apps", Task()),
            lambda: open_store(store).application("apps").late_rows("totals"),
            lambda: open_store(store).application("apps").clocks(),
        ):
            refused(read, f"there is no application apps in store={ran.files.url}; it has app.")
        sentence = "application app has no task totale; it has other, totals."
        refused(lambda: read_state(store, "app", Task(name="totale")), sentence)
        refused(lambda: open_store(store).application("app").late_rows("totale"), sentence)

    def test_a_reader_with_another_monoid(self, store: str) -> None:
        Ran(store, Task()).play(5)
        refused(
            lambda: read_state(store, "app", Task(monoid=Max())),
            "task=totals: the store was written with monoid=Sum(int64), not Max(int64); "
            "open it with the task that wrote it.",
        )

    @pytest.mark.rows_in_files
    def test_a_reader_whose_files_are_gone(self, store: str) -> None:
        ran = Ran(store, Task())
        ran.play(5)
        delete_runs(ran.files)
        with pytest.raises(DamagedError, match=r"^a file that the newest log entry names is gone .*; bring it back "):
            read_state(store, "app", Task())


def delete_runs(files: Files) -> None:
    for name in files.list("app/runs/totals"):
        files.delete(f"app/runs/totals/{name}")


def raised() -> Iterator[tuple[str, str]]:
    """Where each error of the package is raised, and its sentence with a … for every value."""
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, StateError)}
    package = Path(persistent_state.__file__).parent
    for file in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            said: list[ast.expr] = []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds:
                said = node.args[:1]
            if isinstance(node, ast.Yield) and node.value is not None and file.name == "checks.py":
                said = [node.value]
            for text in said:
                if isinstance(text, ast.Constant):
                    yield f"{file.relative_to(package)}:{node.lineno}", str(text.value)
                elif isinstance(text, ast.JoinedStr):
                    parts = (str(p.value) if isinstance(p, ast.Constant) else "…" for p in text.values)
                    yield f"{file.relative_to(package)}:{node.lineno}", "".join(parts)


def test_every_error_is_a_sentence_with_a_value_and_a_way_out() -> None:
    for place, sentence in raised():
        assert sentence.endswith((".", "…")), place
        assert "\n" not in sentence, place
        if sentence == "…":
            continue
        assert "…" in sentence or "=" in sentence or sentence.startswith("no "), f"{place} names no value"
        # What others raised says its own way out, and a name that is taken is met by code.
        if not sentence.endswith(": …") and "raised …" not in sentence and "is taken" not in sentence:
            assert any(mark in sentence for mark in (";", ". ", ", ")), f"{place} says no way out"


def test_settings_default_to_no_delay_and_no_limits_but_a_day_ahead() -> None:
    assert Settings(5) == Settings(5, delay=0, idle_after=None, ahead=86_400_000_000, jump=None, believe=100)


def test_a_task_has_the_applications_delivery_unless_it_was_added_with_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(running, "start", lambda setup, *others: started.append(setup))
    app = Application("app", str(tmp_path), shards=1, delivery="at-least-once")
    with pytest.raises(InvalidInputError, match="delivery='twice'; say one of 'exactly-once', 'at-least-once'"):
        app.add(Task(value="value", key=None), RateSource(1), delivery="twice")
    app.add(Task(name="a", value="value", key=None), RateSource(1))
    app.add(Task(name="b", value="value", key=None), RateSource(1), delivery="at-most-once")
    app.start(Local())
    assert [part.plan.delivery for part in started[0].parts] == ["at-least-once", "at-most-once"]
