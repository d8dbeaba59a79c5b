"""A task's attributes: a misspelt one is refused with the name that is meant, and its own are its own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from monoids import Count, Sum
from persistent_state import (
    Application,
    InvalidInputError,
    Message,
    NonWindowState,
    OrderedTask,
    PersistentTask,
    run_local,
)


def define(*bases: type, **attributes: Any) -> type:
    return type("Misspelt", (*bases, PersistentTask), attributes)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("keys", "key"),
        ("Key", "key"),
        ("values", "value"),
        ("read_state", "reads_state"),
        ("message_ids", "message_id"),
        ("horizons", "horizon"),
        ("process_messages", "process_message"),
        ("process_batches", "process_batch"),
        ("proces_column", "process_column"),
        ("persistent_states", "persistent_state"),
    ],
)
def test_a_misspelt_attribute_is_refused_with_the_name_that_is_meant(name: str, meant: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        define(**{name: "word"})
    assert str(refused.value) == (
        f"task=Misspelt has {name}, which has no effect; write {meant}, or give it another name."
    )


@pytest.mark.parametrize(
    ("name", "meant"), [("tll", "ttl"), ("emitted", "emits"), ("emit", "emits"), ("stat", "state")]
)
def test_a_misspelt_attribute_of_an_ordered_task_is_refused(name: str, meant: str) -> None:
    with pytest.raises(InvalidInputError, match=f"has {name}, which has no effect; write {meant}, or give"):
        type("Misspelt", (OrderedTask,), {name: "3 days"})
    type("Own", (OrderedTask,), {"total": 1, "permitted": 2, "limit": 3})


def test_a_misspelt_attribute_of_a_tasks_subclass_is_refused() -> None:
    class Words(PersistentTask):
        key = "word"

    with pytest.raises(InvalidInputError, match="has process_mesage, which has no effect; write process_message"):
        type("More", (Words,), {"process_mesage": lambda self, state, message: None})


class Limited:
    """A mixin, which is not a task."""

    limit = 2
    keys = ("not", "the", "task's")

    def is_within(self, value: int) -> bool:
        return value <= self.limit


def test_own_attributes_and_those_of_a_mixin_are_fine() -> None:
    class Small(Limited, PersistentTask):
        key = "word"
        columns = ("word", "n")
        _values = (1, 2)
        _keys = ()

        def persistent_state(self) -> NonWindowState[int]:
            return NonWindowState(Count())

        def process_message(self, state: Any, message: Message) -> None:
            if self.is_within(message["n"]):
                state.update(message.timestamp, 1)

    messages = [Message(time, {"word": "to", "n": time}) for time in (1, 2, 3)]
    assert run_local(Small(), messages).state == {"to": 2}


def test_every_duration_may_be_a_timedelta() -> None:
    class Total(PersistentTask):
        key = "word"
        value = "n"
        message_id = "id"
        horizon = timedelta(minutes=1)

        def persistent_state(self) -> NonWindowState[Any]:
            return NonWindowState(Sum())

    messages = [Message(time, {"word": "to", "n": 1, "id": "a"}) for time in (0, 60_000_000, 120_000_001)]
    minute = timedelta(minutes=1)
    ran = run_local(Total(), messages, checkpoint_interval=minute, allowed_delay=minute)
    assert ran.state == {"to": 2}
    names = ("checkpoint_interval", "allowed_delay", "idle_after", "max_ahead", "max_jump")
    options: dict[str, Any] = dict.fromkeys(names, minute)
    Application("app", "store", **options)
    with pytest.raises(InvalidInputError, match="has no task"):
        Application("app", "store").start(None, trigger=minute)  # type: ignore[arg-type]
