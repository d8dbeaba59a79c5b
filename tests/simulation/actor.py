"""Who acts in a world: drivers and their workers, as threads that let others go first whenever they ask the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent, greenlet

from persistent_state.errors import ExistsError, StateError, StoreUnavailableError
from persistent_state.store.log import Log
from tests.simulation.engines import Engine
from tests.simulation.graphs import Derived
from tests.simulation.messages import Job
from tests.simulation.oracle import Terms
from tests.simulation.ordered import Part

if TYPE_CHECKING:
    from tests.simulation.world import World


class Crash(BaseException):
    """The process is killed."""


@dataclass(eq=False)
class Thread:
    """Something that runs until it asks the store for something, and then lets others go first."""

    actor: Actor
    body: Callable[[], Any]
    is_worker: bool
    light: greenlet = field(init=False)
    pending: Callable[[], Any] | None = None
    waiting: list[Thread] = field(default_factory=list)
    wake: int = 0
    lists: int = 9
    """How many listings its last collection has asked for."""
    done: bool = False
    result: Any = None
    error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.body()
        except (Crash, StateError, FileNotFoundError) as error:
            self.error = error
        self.done = True


@dataclass(eq=False)
class Actor:
    """One start of the application: a driver, its workers, and their way to the store."""

    number: int
    world: World
    terms: Terms
    shards: int
    jobs: list[Job]
    closes: bool
    is_last: bool
    epoch: int = 0
    workers_log: Log = field(init=False)
    threads: list[Thread] = field(default_factory=list)
    cache: dict[tuple[str, int], Any] = field(default_factory=dict)
    fate: str = "lives"
    fate_step: int = 0
    over: bool = False
    finished: bool = False
    sabotaged: bool = False
    derived: list[Derived | Part] = field(default_factory=list)
    engine: Engine = field(default_factory=Engine)
    inputs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By task that may have several inputs: those that it has."""
    interval: int | None = None
    """The checkpoint interval as it is said; None if that of its terms is."""
    apart: dict[str, int] = field(default_factory=dict)
    """By task, the time of which it keeps each multiple apart."""
    has_closed: bool = False
    reading: set[str] = field(default_factory=set)
    """The flows whose sources are being read."""
    stepping: str | None = None
    """The flow of a step that is under way, beside no source."""
    """Whether its sources are read to their end, and closed: what is left are steps, and deliveries."""
    has_read: bool = False
    """Whether all is read, and its steps are taken: what is left is to be delivered."""

    def perform(self, operation: str, path: str, act: Callable[[], Any]) -> Any:
        """Do something to the store, when it is this thread's turn, if it works."""
        world, changes = self.world, operation in ("create", "delete", "write")
        if operation == "create" and "/log/" in path and world.rng.random() < world.nap_rate:
            # The worst moment to fall asleep: all is decided, and the number may be taken before it is written.
            getcurrent().thread.wake = world.step + world.rng.choice([20, 60, 200])
        if operation == "write" and world.places is not None and world.places.random() < 0.3:
            # The application may be rewound meanwhile, and what is written comes late.
            getcurrent().thread.wake = world.step + world.places.choice([20, 100, 400])
        if world.pauses is not None:
            world.pauses.before(world, path)
        thread = getcurrent().thread
        if operation == "list":
            thread.lists += 1
        if thread.lists == 2 and self.fate == "taken over" and world.rng.random() < world.doze_rate:
            # So is this, in a collection: who has looked whether all is its own goes on to delete when it is another's.
            self.fate_step, world.doze_rate = world.step, 0.0
            for thread in self.threads:
                thread.wake = world.step + 1000
        world.pause(act if changes else None)
        fate = world.fate()
        name = f"{self.number} {operation} {path}"
        if fate == "fails":
            if operation == "create" and world.rng.random() < 0.5:
                world.disk.tear(path, world.now)
            world.note(f"{name} fails")
            raise StoreUnavailableError(f"{operation} {path} failed.")
        try:
            result = act()
        except (ExistsError, FileNotFoundError) as error:
            world.note(f"{name} {type(error).__name__}")
            if fate == "answer lost":
                raise StoreUnavailableError(f"{operation} {path} was not answered.") from None
            raise
        world.note(name if fate is None else f"{name} {fate}")
        if fate == "answer lost" and changes:
            raise StoreUnavailableError(f"{operation} {path} was not answered.")
        if fate == "asked again" and operation == "create":
            # The client of the store did, and met its own file.
            raise ExistsError(f"{path} is taken.")
        if operation == "list":
            return world.as_listed(path, result)
        return world.as_read(self, path, result) if operation == "read" else result
