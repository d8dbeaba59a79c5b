"""The sink that calls a user's function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from persistent_state.sinks.base import Origin, Sink
from persistent_state.sinks.values import Values


@dataclass(frozen=True)
class Function(Sink):
    """A sink that calls a function of (values, clock). The function is given a DataFrame, or `Values` if it `takes_arrow`.

    It keeps no record of what it was given. A clock may come again, never out of order: if the driver dies after the function
    has returned and before the log records it, or while a fenced driver is still in the middle of a call. For the same reasons
    `on_rewind` may be called again.

    `on_rewind` is given the clock in microseconds UTC, and takes back all that is above. The clock is -2**63 if nothing may
    stay: that is below every clock, and beyond what a `datetime` can say. A function has no record that could fence a process.
    So the call of a process that was fenced may come late: after that of the newer one, and after values that this one has
    given.
    """

    function: Callable[[Any, int], None]
    on_rewind: Callable[[int], None] | None = None
    takes_arrow: bool = False

    @property
    def name(self) -> str:
        named = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        return f"function {named.replace('<locals>.', '')}"

    def write_values(self, values: Values, clock: int) -> None:
        self.function(values if self.takes_arrow else values.to_spark(), clock)

    def can_rewind(self, origin: Origin) -> bool:
        return self.on_rewind is not None

    def rewind(self, clock: int, values: Values) -> None:
        assert self.on_rewind is not None, "it can go back"
        self.on_rewind(clock)
