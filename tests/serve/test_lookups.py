"""Look-ups: right at every clock, for keys of every type, and a sentence for what can't be answered."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from persistent_state import open_store
from persistent_state.errors import InvalidInputError
from persistent_state.protocol import naming, rewind
from persistent_state.serve import lookups as serving
from persistent_state.serve.lookups import Lookups, read_question
from tests import core
from tests.serve.worlds import STORE, Served
from tests.two_tasks import TwoTasks


def test_every_key_is_answered_at_every_clock_as_the_store_has_it() -> None:
    served, store = Served(STORE), open_store(str(STORE)).application("app")
    count = 0
    for task in store.tasks():
        for clock in store.clocks():
            for row in store.task(task, presented=True).at(clock).to_arrow().to_pylist():
                value = row.pop("value")
                told = served.lookup(application="app", task=task, clock=str(clock), key=json.dumps(row))
                assert (told["value"], told["key"], told["clock"]) == (value, row, clock)
                count += 1
    assert count > 20


def test_the_newest_clock_is_taken_by_default_and_columns_are_parameters_too() -> None:
    served = Served(STORE)
    by_column = served.lookup(application="app", task="Totals", shop="Bergen", item="1")
    assert by_column["clock"] == 220
    assert by_column == served.lookup(application="app", task="Totals", **{"key.shop": "Bergen", "key.item": "1"})
    null = served.lookup(application="app", task="Totals", shop="Bergen", null="item", clock="220")
    assert null["value"] == {"sales": 8, "total": 1024}
    assert served.lookup(application="app", task="Notes", key='"Bergen"') == served.lookup(
        application="app", task="Notes", shop="Bergen", clock="1970-01-01T00:00:00.00022Z"
    )
    assert served.lookup(application="app", task="Notes", shop="nowhere")["value"] is None


@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [
        ({"application": "app"}, 400, "task is missing; add task=NAME to the URL."),
        ({"application": ""}, 400, "application and task are missing; add application=NAME to the URL."),
        ({"application": "shop", "task": "Totals"}, 404, "there is no application shop in store="),
        ({"application": "../app", "task": "Totals"}, 404, "there is no application ../app in store="),
        ({"task": "Sales"}, 404, "application app has no task Sales; it has Notes, Totals."),
        ({"clock": "170"}, 404, "clock=1970-01-01T00:00:00.000170Z (170) of app is not kept; take clock=1970"),
        ({"clock": "yesterday"}, 404, "clock='yesterday' is not a time, and keeps no clock of app; "),
        ({"item": "one"}, 400, "'one' of column 'item' of task=Totals is not int64; write a value of that type: a time as "),
        ({"item": "1.5"}, 400, "'1.5' of column 'item' of task=Totals is not int64"),
        ({"item": str(2**63)}, 400, "a value of column 'item' is beyond int64; "),
        ({"item": str(2**70)}, 400, "a value of column 'item' is beyond int64; "),
        ({"item": "1_0"}, 400, "'1_0' of column 'item' of task=Totals is not int64"),
        ({"item": "\u0661"}, 400, "of column 'item' of task=Totals is not int64"),
        ({"clock": "2026-11-20T12:10 01:00"}, 404, "a zone is written %2B, or the name of a kept clock; no clock has a name"),
        ({"colour": "red"}, 400, "colour is no key column of task=Totals; its key columns are shop (string), item (int64)."),
        ({"shop": ""}, 200, ""),
        ({"key": "{"}, 400, "the key is given twice; "),
    ],
)  # fmt: skip
def test_what_can_not_be_answered_is_a_sentence(asked: dict[str, str], status: int, said: str) -> None:
    base = {"application": "app", "task": "Totals", "shop": "Bergen", "item": "1"}
    whole = asked if "application" in asked else {**base, **asked}
    told = Served(STORE).lookup(status, **whole)
    assert status == 200 or said in told["error"]


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("{", "is not JSON"),
        ("[1]", "is no object; write it as"),
        ('{"shop": "Bergen"}', "key column item of task=Totals is missing; "),
        ('{"shop": 1, "item": 1}', "1 of column 'shop' of task=Totals is not string"),
        ('{"shop": "Bergen", "item": true}', "True of column 'item' of task=Totals is not int64"),
        ('{"shop": "Bergen", "item": [1]}', "[1] of column 'item' of task=Totals is not int64"),
    ],
)
def test_a_key_as_json_that_is_none_is_a_sentence(key: str, said: str) -> None:
    assert said in Served(STORE).lookup(400, application="app", task="Totals", key=key)["error"]


def test_what_is_no_utf_8_is_refused_and_never_another_key() -> None:
    served = Served(STORE)
    url = "/lookup?application=app&task=Totals&item=1&shop="
    for text in ("%ff", "%ed%a0%80", "a%C3"):
        answer = served.client.get(url + text)
        assert answer.status_code == 400
        assert " of the URL is not UTF-8; write each byte of a text's UTF-8 as %XX." in answer.json()["error"]
        assert served.client.get(f"/{url.removeprefix('/lookup')}{text}").status_code == 400
    assert served.client.get(f"{url}%EF%BF%BD").json()["key"] == {"shop": "\ufffd", "item": 1}


def test_a_parameter_that_is_given_twice_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"^shop is given twice; give it once\.$"):
        read_question([("application", "app"), ("task", "T"), ("shop", "a"), ("shop", "b")])


def test_a_kept_clock_is_found_by_its_name_and_a_rewind_is_followed() -> None:
    world = TwoTasks(outputs=())
    for at in (15, 25, 35):
        for task in "AB":
            world.read(task, {"x": at}, "x")
    naming.keep(world.log, 20_000_000, "before the fix", 0)
    served = Served(world.log.files)
    asked = {"application": "app", "task": "A", "word": "x"}
    assert served.lookup(**asked, clock="before the fix")["value"] == 1
    assert served.lookup(**asked)["value"] == 2
    planned = core.plan_rewind(world.log, 20_000_000, rewind.RETRACT)
    entry = rewind.rewind(world.log, planned, writer="somebody", now=0)
    told = served.lookup(**asked)
    assert (told["value"], told["clock"], told["timeline"]) == (1, 20_000_000, entry.timeline)
    served.lookup(404, **asked, clock="30000000")


def test_before_the_first_checkpoint_there_is_nothing_to_look_up() -> None:
    world = TwoTasks()
    assert Served(world.log.files).lookup(404, application="app", task="A", word="x") == {
        "error": "task=A has no checkpoint yet; ask again when it has one."
    }
    error = Served(world.log.files).lookup(404, application="app", task="A", word="x", clock="30")["error"]
    assert error == "clock=1970-01-01T00:00:00.000030Z (30) of app is not kept; no clock is kept yet."


def test_states_stay_open_but_not_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups = Lookups(open_store(str(STORE)))
    asked = read_question([("application", "app"), ("task", "Notes"), ("shop", "Bergen")])
    lookups.answer(asked)
    (state,) = lookups._states.values()
    lookups.answer(asked)
    assert [*map(id, lookups._states.values())] == [id(state)]
    monkeypatch.setattr(serving, "STATES", 2)
    for clock in (160, 200, 220):
        lookups.answer(replace(asked, clock=str(clock)))
    assert [place[2] for place in lookups._states] == [200, 220]
