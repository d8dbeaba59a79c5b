"""Joins of two inputs: the joined rows at each clock are those of a loop over all rows, and what is not needed leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from random import Random
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monoids import Last
from persistent_state import (
    Application,
    AsOfJoin,
    Changes,
    Emitted,
    FileSource,
    Input,
    IntervalJoin,
    InvalidInputError,
    Message,
    NonWindowState,
    PersistentTask,
    ValuesAtClock,
    run_local,
)
from persistent_state.batch.plan import Plan
from persistent_state.drive.local import flows_of
from persistent_state.edges.joins import as_of as newest_rows
from persistent_state.edges.joins import interval as near_rows
from persistent_state.edges.joins.interval import Bounds
from persistent_state.edges.joins.join import Join
from persistent_state.errors import StateError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.partials import fold, newest, waiting
from persistent_state.partials.since import Since
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store.late_rows import UNFIT
from persistent_state.store.state_at import seen_below
from persistent_state.task import names_of_parts as names
from tests import core
from tests.edges.test_joins import QUOTE, TRADE, Row, as_of_oracle, interval_oracle, joined_row, value
from tests.local_application import LocalApplication, Rows, compiled
from tests.simulation.planted import Bug, bug
from tests.soak import soak_or

KEEPING = Keeping(3, 0)
DELAY = 6


class World(LocalApplication):
    """An application of one join. Its rows come out of order, no later than the allowed delay.

    At most about so many rows are joined at a time.
    """

    def __init__(self, join: Join, shards: int = 2, most: int = fold.SLICE) -> None:
        self.most, self.join = most, join
        self.inputs = {"trades": Rows(TRADE), "quotes": Rows(QUOTE)}
        for source in self.inputs.values():
            source.timestamp = "ts"
        self.rows: list[Row] = []
        self.newest_of = {"trades": 0, "quotes": 0}
        self.found: list[Any] = []
        self.given = BEGINNING
        self.waiting, self.states, self.emitted = names(join.name)
        super().__init__(*compiled(self.application, core.memory(), shards), KEEPING, parts=2)

    @property
    def application(self) -> Application:
        return application(self.join, self.inputs)

    def begin(self, shards: int | None = None) -> None:
        """Start with the join and the inputs as they are now."""
        self.become(self.application, shards)
        self.start()

    def come(self, *rows: tuple[Any, int, bool]) -> None:
        """Rows that come, told by key, time, and whether they are quotes."""
        for row in rows:
            told = (*row, len(self.rows))
            self.rows.append(told)
            input = "quotes" if row[2] else "trades"
            self.inputs[input].rows.append(tuple(value(told)[input].values()))
            self.newest_of[input] = max(self.newest_of[input], row[1])

    def read(self) -> None:
        if self.rows:
            self.turn(self.waiting)

    def steps(self) -> None:
        with mock.patch.object(fold, "SLICE", self.most):
            super().steps()

    def go_to(self, time: int) -> None:
        """Let both inputs come to a time."""
        self.come(("end", time + DELAY, True), ("end", time + DELAY, False))
        self.read()
        self.steps()

    def check(self) -> None:
        entry = self.newest
        assert not entry.late_counts_of(self.waiting)
        if isinstance(self.join, AsOfJoin):
            for clock in entry.retained:
                if entry.is_at(self.states, clock):
                    assert self.kept_quotes(clock) == self.newest_quotes(clock, self.join.tolerance)
        if entry.clock > self.given:
            runs, floor = entry.tasks[self.emitted].stored.runs, Since(self.given)
            table = seen_below(self.files, runs, self.plans[self.emitted].layout, entry.clock, floor)
            # Rows of one moment and key stand in their order.
            rows = table.select(["timestamp", "key0", "value"]).to_pylist()
            self.found += sorted([tuple(row.values()) for row in rows], key=lambda row: (row[0], str(row[1])))
            self.given = entry.clock
            assert self.found == self.expected(entry.clock)

    def expected(self, clock: int) -> list[Any]:
        if isinstance(self.join, IntervalJoin):
            return interval_oracle(self.rows, self.join.bounds, clock)
        assert isinstance(self.join, AsOfJoin)
        return [row for row in as_of_oracle(self.rows, self.join.tolerance) if row[0] < clock]

    def kept_quotes(self, clock: int) -> dict[Any, Any]:
        return {key: each["state"] for (key,), each in self.state(self.states, clock).items()}

    def newest_quotes(self, clock: int, tolerance: int | None) -> dict[Any, Any]:
        quotes = sorted((row for row in self.rows if row[2] and row[1] < clock), key=lambda row: (row[1], row[3]))
        newest = {row[0]: row for row in quotes}
        is_kept = {key: tolerance is None or row[1] >= clock - tolerance for key, row in newest.items()}
        return {key: value(row)["quotes"] for key, row in newest.items() if is_kept[key]}

    def waiting_rows(self) -> int:
        return sum(run.rows for run in self.newest.tasks[self.waiting].stored.runs)


def application(join: Join, inputs: Mapping[str, Any], sink: Any = None) -> Application:
    app = Application(
        "app", "memory://joins", checkpoint_interval=core.us(10), allowed_delay=core.us(DELAY), max_ahead="100000 days"
    )
    inputs = {name: Input(source, key="symbol") if name == "quotes" else source for name, source in inputs.items()}
    return app.add(join, inputs, sink)


def planned(join: Join, inputs: Mapping[str, Any], sink: Any = None) -> dict[str, Plan]:
    return compiled(application(join, inputs, sink), core.memory())[0]


def as_of(tolerance: int | None) -> AsOfJoin:
    return AsOfJoin("trades", "quotes", key="k", tolerance=None if tolerance is None else core.us(tolerance))


def interval(before: int, after: int, how: str = "inner") -> IntervalJoin:
    return IntervalJoin("trades", "quotes", core.us(before), core.us(after), key="k", how=how)


some_joins = st.one_of(
    st.builds(as_of, st.none() | st.integers(0, 25)),
    st.builds(interval, st.integers(0, 25), st.integers(0, 25), st.sampled_from(["inner", "left"])),
)
some_rows = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.integers(-DELAY, 12), st.booleans()), min_size=1, max_size=8
)
acts = st.one_of(some_rows, some_rows, st.sampled_from(["play", "step"]), st.integers(1, 3))


@pytest.mark.soak
@settings(max_examples=soak_or(ci=15, soak=40))
@given(some_joins, st.lists(acts, min_size=3, max_size=12), st.sampled_from([2, 5, fold.SLICE]))
def test_joined_rows_are_those_of_a_loop_over_all(join: Join, history: list[Any], most: int) -> None:
    play(join, history, most)


def play(join: Join, history: Sequence[Any], most: int) -> None:
    world = World(join, most=most)
    world.start()
    for act in history:
        if isinstance(act, int):
            world.begin(act)
        elif act == "play":
            world.read()
        elif act == "step":
            world.steps()
        else:
            for key, ahead, is_quote in act:
                newest = world.newest_of["quotes" if is_quote else "trades"]
                world.come((key, max(0, newest + ahead), is_quote))
            world.read()
            world.steps()
    last = max(world.newest_of.values())
    # The clock moves on as long as rows come, and what is not needed any more leaves.
    for ahead in range(30, 210, 30):
        world.go_to(last + ahead)
    assert world.newest.clock >= last + 150
    assert len(world.found) == len(world.expected(world.newest.clock))
    assert world.waiting_rows() <= 30


BUGS = (
    bug(
        "later row",
        "A right row that comes after a left row of its key is joined with it.",
        newest_rows.as_of,
        ("newest[lasts[moment]]", "newest[np.append(begins[1:], len(times))[key] - 1]"),
    ),
    bug(
        "right row of the moment",
        "A right row of the left row's moment is not joined with it if it stands behind it.",
        newest_rows.as_of,
        ("newest[lasts[moment]]", "newest[rows]"),
    ),
    bug(
        "right row of before the step",
        "A right row of before the step is forgotten.",
        newest_rows.AsOfMessages.join,
        ("fold.fold_keys([*stored, *new], fed.layout)", "fold.fold_keys(new, fed.layout)"),
    ),
    bug(
        "state of a join",
        "The newest right row of a key is collected once the clock has passed it, though rows within the tolerance may come.",
        newest.Versions._ends,
        ("(self.ttl + 1)", "1"),
    ),
    bug(
        "rows within reach",
        "A row is collected as soon as the clock has passed it, though rows that are within its reach may come.",
        waiting.Waiting._ends,
        ("(1 + self.back)", "1"),
    ),
    bug(
        "runs within reach",
        "A run is dropped as soon as the clock has passed it, though rows that are within its reach may come.",
        waiting.Waiting.has_expired,
        ("last + self.back", "last"),
    ),
    bug(
        "nulls too early",
        "A left row is joined with nulls although a right one can still come.",
        near_rows.interval,
        ("moments = of + bounds.after", "moments = of"),
    ),
    bug(
        "nulls beside a pair",
        "A left row is joined with nulls although an earlier step has joined it.",
        near_rows.interval,
        ("all_begin == ends", "begins == ends"),
    ),
    bug(
        "pairs again",
        "Pairs whose rows a step reads again are joined again.",
        near_rows.interval,
        ("np.maximum(low, since)", "low"),
    ),
    bug(
        "edge of the reach",
        "A right row that is as much newer as it may be is not joined.",
        near_rows.interval,
        ("bounds.after + 1", "bounds.after"),
    ),
)


@pytest.mark.parametrize("planted", BUGS, ids=lambda planted: planted.name)
def test_a_bug_in_a_join_is_found(planted: Bug) -> None:
    with planted.planted():
        assert any(is_broken(seed) for seed in range(150)), planted.says


def is_broken(seed: int) -> bool:
    """Whether a history by this seed shows that something is wrong."""
    rng = Random(seed)
    reach = [rng.randint(0, 25) for _ in range(2)]
    join = rng.choice([as_of(None), as_of(reach[0]), interval(*reach), interval(*reach, "left")])
    history: list[Any] = ["play"]
    for _ in range(rng.randint(3, 12)):
        rows = [(rng.choice("ab"), rng.randint(-DELAY, 12), rng.random() < 0.5) for _ in range(rng.randint(1, 8))]
        history.append(rng.choice([rows, rows, rows, "step"]))
    try:
        play(join, history, rng.choice([2, 5, fold.SLICE]))
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("join", [as_of(None), as_of(20), interval(20, 0), interval(0, 20), interval(15, 5, "left")])
def test_what_the_clock_has_passed_leaves(join: Join) -> None:
    world = World(join)
    world.start()
    for key in range(50):
        world.come((f"{key}", key % 10, True), (f"{key}", 9 - key % 10, False))
    world.go_to(20)
    # Rows at 0 to 9 are needed no more once the clock has passed 29.
    for time in (50, 80, 110, 140):
        world.go_to(time)
    assert world.newest.clock >= 110
    assert world.waiting_rows() <= 10
    states = sum(run.rows for run in world.newest.tasks[world.states].stored.runs)
    assert (states > 50) == (isinstance(join, AsOfJoin) and join.tolerance is None)


def test_a_left_row_that_nothing_meets_is_joined_though_no_row_comes_to_its_shard() -> None:
    world = World(interval(5, 30, "left"), shards=3)
    world.start()
    world.come(*[(f"{key}", 2, False) for key in range(6)])
    for time in (20, 40, 60):
        world.go_to(time)
    found = [row for row in world.found if row[1] != "end"]
    assert found == [(32, row[0], joined_row(row, None)) for row in world.rows[:6]]


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_pair_is_joined_once_though_steps_read_it_again(how: str) -> None:
    world = World(interval(30, 30, how))
    world.start()
    world.come(("a", 2, True), ("a", 3, False), ("a", 15, True), ("a", 15, False))
    for time in (20, 40, 60):
        world.go_to(time)
    assert [(row[0], row[2]["n"], row[2]["bid"]) for row in world.found if row[1] == "a"] == [
        (3, 1, 0.0), (15, 1, 0.5), (15, 3, 0.0), (15, 3, 0.5)
    ]  # fmt: skip


def test_right_rows_that_come_out_of_order_are_joined_in_theirs() -> None:
    world = World(as_of(None))
    world.start()
    world.come(("a", 9, True), ("a", 11, False), ("a", 4, True), ("a", 5, False))
    world.go_to(20)
    assert [row[2]["quotes_ts"] for row in world.found] == [4, 9]


@pytest.mark.parametrize("join", [as_of(None), interval(50, 50)])
def test_a_late_row_is_kept_aside_and_joined_with_nothing(join: Join) -> None:
    trades, quotes = (FileSource(f"{name}/", timestamp="ts") for name in ("trades", "quotes"))
    app = Application("app", "memory://joins", checkpoint_interval=core.us(10))
    app.add(join, {"trades": trades, "quotes": Input(quotes, key="symbol")})
    rows = {
        "trades": [Message(time, {"k": "a"}) for time in (5, 35, 36)],
        "quotes": [Message(time, {"symbol": "a", "bid": time}) for time in (1, 31, 4, 37)],
    }
    ran = run_local(app, {"trades_quotes": rows}, batch_size=2)["trades_quotes"]
    assert [(row["reason"], row["row"]["quotes"]["bid"]) for row in ran.late] == [("late", 4)]
    assert {row["bid"] for row in ran.emitted} == ({1, 31} if isinstance(join, AsOfJoin) else {1, 31, 37})


def test_other_bounds_of_a_join_that_has_rows_are_refused() -> None:
    world = World(interval(5, 5))
    world.start()
    world.come(("a", 1, True))
    world.read()
    world.join = interval(5, 50)
    with pytest.raises(
        StateError, match=r"rows waited for 5 microseconds after .* wait for 50 .* rebuild=\[\"trades_quotes\"\]"
    ):
        world.begin()
    # The same rows wait as long for these, so that nothing is missing.
    world.join = interval(2, 5)
    world.begin()


@pytest.mark.parametrize("kind", ["as of", "interval"])
def test_other_sides_of_a_join_that_has_rows_are_refused(kind: str) -> None:
    def join(left: str, right: str) -> Join:
        if kind == "as of":
            return AsOfJoin(left, right, key="k", name="Joined")
        return IntervalJoin(left, right, core.us(5), core.us(5), key="k", name="Joined")

    world = World(join("trades", "quotes"))
    world.start()
    world.come(("a", 1, True), ("a", 2, False))
    world.go_to(20)
    number, world.join = world.newest.number, join("quotes", "trades")
    with pytest.raises(InvalidInputError) as refused:
        world.begin()
    assert str(refused.value) == (
        "task=Joined: input='quotes' was the right side of the join when the store was written, and is the left side of the "
        f"join now. {core.ways('Joined')}"
    )
    assert world.newest.number == number
    world.join = join("trades", "quotes")
    world.begin()
    world.go_to(40)


def test_columns_of_rows_that_wait_come_and_go() -> None:
    world = World(interval(30, 30))
    world.begin()
    world.come(("a", 2, True), ("a", 3, False))
    world.go_to(20)
    other = Rows(TRADE.set(2, pa.field("n", pa.string())))
    other.timestamp = "ts"
    # All have passed, and are needed all the same.
    with pytest.raises(InvalidInputError, match=r"field 'trades\.n' was written as int64, and is string now"):
        core.start(
            world.log, flows_of(compiled(application(world.join, {**world.inputs, "trades": other}), world.files)[0])
        )
    trades, quotes = Rows(pa.schema([*TRADE, ("more", pa.int64())])), Rows(QUOTE.remove(QUOTE.get_field_index("note")))
    trades.rows = [(*row, None) for row in world.inputs["trades"].rows]
    quotes.rows = [row[:-1] for row in world.inputs["quotes"].rows]
    trades.timestamp = quotes.timestamp = "ts"
    world.inputs = {"trades": trades, "quotes": quotes}
    # The oracle knows the columns of before.
    world.check = lambda: None  # type: ignore[method-assign]
    world.begin()
    trades.rows += [("a", 28, 7, "late", 5), ("end", 60, 8, None, 6)]
    quotes.rows += [("a", 27, 7.5), ("end", 60, 8.5)]
    world.read()
    entry = world.newest
    (due,) = world.due()
    world.turn(due.flow.id)
    runs = world.newest.tasks[world.emitted].stored.runs
    rows = seen_below(world.files, runs, world.plans[world.emitted].layout, world.newest.clock, Since(entry.clock))[
        "value"
    ].to_pylist()
    assert [(row["n"], row["bid"], row["more"]) for row in rows if row["k"] == "a"] == [
        (1, 7.5, None), (7, 0.0, 5), (7, 7.5, 5)
    ]  # fmt: skip
    assert {*rows[0]} == {"k", "ts", "n", "note", "more", "quotes_ts", "bid"}


def test_wrong_joins_are_refused() -> None:
    for wrong, said in [
        (lambda: AsOfJoin("trades", "trades", key="k"), "left='trades' and right='trades' are one name; give each"),
        (lambda: AsOfJoin("", "quotes", key="k"), "left='' can't be the name of an input; use letters"),
        (
            lambda: AsOfJoin("trades", "quotes", key="k", tolerance="-1 seconds"),
            "tolerance='-1 seconds' is not a duration",
        ),
        (lambda: interval(-1, 0), r"before=datetime.timedelta\(.*\); it must be at least 0"),
        (lambda: interval(0, 0, "outer"), "how='outer' is no way to join here; say 'inner' or 'left'"),
        (lambda: interval(2**61, 0), "before=.*; it must be at most 1152921504606846976 microseconds"),
    ]:
        with pytest.raises(InvalidInputError, match=said):
            wrong()


def rows_of(*columns: tuple[str, Any]) -> Rows:
    source = Rows(pa.schema(columns))
    source.timestamp = "ts"
    return source


TRADES = [("k", pa.string()), ("ts", pa.int64())]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"trades": Rows(TRADE)}, "joins the inputs 'trades' and 'quotes', and its inputs are 'trades'; give"),
        ({"": Rows(TRADE)}, "and its inputs are ''; give both"),
        ({"trades": Rows(TRADE), "quote": Rows(QUOTE)}, "and its inputs are 'trades', 'quote'; give both"),
        (
            {"trades": rows_of(*TRADES), "quotes": rows_of(("symbol", pa.int64()), ("ts", pa.int64()))},
            "the key has the types int64 here and string in the first input; cast the columns",
        ),
        (
            {"trades": rows_of(*TRADES, ("b", pa.int64()), ("quotes_b", pa.int64())),
             "quotes": rows_of(("symbol", pa.string()), ("ts", pa.int64()), ("b", pa.int64()))},
            "would have two columns 'quotes_b'; rename one in its source's transform",
        ),
        (
            {"trades": rows_of(("ts", pa.int64())), "quotes": rows_of(("symbol", pa.string()), ("ts", pa.int64()))},
            "the key column 'k' is not in the source",
        ),
        (
            {"trades": Input(rows_of(*TRADES), value="ts"), "quotes": rows_of(*TRADES)},
            "input='trades' has value='ts', and it gets whole messages; leave it out",
        ),
    ],
)  # fmt: skip
def test_inputs_that_can_not_be_joined_are_refused(given: Mapping[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        planned(as_of(None), given)


def test_the_order_in_which_inputs_are_given_says_nothing() -> None:
    one, other = ({name: Rows(schema) for name, schema in some} for some in permuted())
    for source in (*one.values(), *other.values()):
        source.timestamp = "ts"
    of_one, of_other = (planned(as_of(None), given) for given in (one, other))
    assert [plan.identity for plan in of_one.values()] == [plan.identity for plan in of_other.values()]


def permuted() -> Sequence[list[tuple[str, pa.Schema]]]:
    some = [("trades", TRADE), ("quotes", QUOTE)]
    return some, some[::-1]


def test_columns_of_joined_rows() -> None:
    inputs = {"trades": rows_of(*TRADES, ("timestamp", pa.int64()), ("symbol", pa.int8())), "quotes": Rows(QUOTE)}
    inputs["quotes"].timestamp = "ts"
    plans = planned(as_of(None), inputs, sink=print)
    assert plans["trades_quotes.rows"].layout.monoid.type.names == [
        "k", "ts", "trades_timestamp", "symbol", "quotes_ts", "bid", "note",
    ]  # fmt: skip


def test_a_join_can_feed_a_task() -> None:
    assert Emitted("trades_quotes").task in planned(
        as_of(None),
        {"trades": rows_of(*TRADES), "quotes": rows_of(("symbol", pa.string()), ("ts", pa.int64()))},
    )
    assert Bounds(1, 2, False).back == 2


def test_columns_of_all_types_are_joined_and_a_value_that_does_not_fit_makes_a_bad_row() -> None:
    day = date(2026, 1, 2)
    of_left = pa.schema(
        [
            ("k", pa.dictionary(pa.int32(), pa.string())),
            ("ts", pa.timestamp("ms", "UTC")),
            ("n", pa.uint64()),
            ("f", pa.float32()),
            ("day", pa.date64()),
            ("some", pa.large_list(pa.int16())),
            ("deep", pa.struct([("x", pa.int8()), ("y", pa.string())])),
        ]
    )
    of_right = pa.schema([("k", pa.string()), ("ts", pa.timestamp("ns", "UTC")), ("price", pa.decimal128(9, 2))])
    left = {"k": "a", "ts": millis(5), "n": 1, "f": 0.5, "day": day, "some": [1, None], "deep": {"x": 1, "y": None}}
    rows = {
        "trades": pa.Table.from_pylist([left, {**left, "n": 2**63}, {**left, "deep": None, "some": None}], of_left),
        "quotes": pa.Table.from_pylist([{"k": "a", "ts": millis(4), "price": Decimal("1.25")}], of_right),
    }
    app = Application("app", "memory://joins", checkpoint_interval="1 second", max_ahead="100000 days")
    app.add(
        as_of(None), {name: FileSource("there/", timestamp="ts", schema=some.schema) for name, some in rows.items()}
    )
    messages = {
        name: [Message(int(row["ts"].timestamp() * 1e6), row) for row in some.to_pylist()]
        for name, some in rows.items()
    }
    ran = run_local(app, {"trades_quotes": messages})["trades_quotes"]
    joined = {**left, "quotes_ts": millis(4), "price": Decimal("1.25"), "timestamp": 5000}
    assert ran.emitted == [joined, {**joined, "deep": None, "some": None}]
    assert [(row["reason"], row["row"]["trades"]["n"]) for row in ran.late] == [(UNFIT, 2**63)]


def millis(count: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=count)


class Rates(PersistentTask):
    key, value = "symbol", "bid"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Last(pa.int64()))


def test_an_input_may_be_another_task_and_a_join_may_be_the_input_of_a_join() -> None:
    trades, quotes, fees = (FileSource(f"{name}/", timestamp="ts") for name in ("trades", "quotes", "fees"))
    app = Application("app", "memory://joins", checkpoint_interval=core.us(10))
    app.add(Rates(), quotes)
    app.add(AsOfJoin("trades", "rates", key="symbol"), {"trades": trades, "rates": Changes("Rates", every=core.us(10))})
    app.add(AsOfJoin("priced", "fees", key="symbol"), {"priced": Emitted("trades_rates"), "fees": fees})
    ran = run_local(app, {
        "Rates": [Message(1, {"symbol": "a", "bid": 5}), Message(12, {"symbol": "a", "bid": 6})],
        "trades_rates": {"trades": [Message(time, {"symbol": "a"}) for time in (5, 15, 25)]},
        "priced_fees": {"fees": [Message(14, {"symbol": "a", "fee": 1})]},
    })  # fmt: skip
    rates = [(None, None), (None, {"value": 5}), ({"value": 5}, {"value": 6})]
    assert [(row["before"], row["after"]) for row in ran["trades_rates"].emitted] == rates
    found = ran["priced_fees"].emitted
    assert [(row["timestamp"], row["before"], row["after"], row["fee"]) for row in found] == [
        (time, *rate, fee) for time, rate, fee in zip((5, 15, 25), rates, (None, 1, 1), strict=True)
    ]


def test_a_column_that_can_not_be_kept_is_refused() -> None:
    inputs = {
        "trades": rows_of(*TRADES),
        "quotes": rows_of(("symbol", pa.string()), ("ts", pa.int64()), ("x", pa.null())),
    }
    with pytest.raises(
        InvalidInputError, match="column 'x' of input='quotes' is null, which can't be kept; cast it, or leave"
    ):
        planned(as_of(None), inputs)


def test_an_interval_join_has_no_states_to_give() -> None:
    inputs = {"trades": rows_of(*TRADES), "quotes": rows_of(("symbol", pa.string()), ("ts", pa.int64()))}
    with pytest.raises(
        InvalidInputError,
        match=r"ValuesAtClock of sink=.function print. asks for the states of keys, and this task has none; give ",
    ):
        planned(interval(1, 1), inputs, sink=ValuesAtClock(print))
    assert planned(as_of(1), inputs, sink=ValuesAtClock(print))["trades_quotes"].outputs == ("function print",)
