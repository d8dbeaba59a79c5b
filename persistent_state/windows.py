"""Windows of event time and the time to live of a state, as pure functions of timestamps.

Timestamps are microseconds UTC and ranges are half-open. A message in a gap between windows is in no window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.errors import InvalidInputError
from persistent_state.event_time.durations import Duration, positive, show_duration

LONGEST = 2**61
"""The longest window, gap, time to live or horizon in microseconds: what is computed with them stays within 64 bits."""

WINDOW = ("window_start", "window_end")
"""The columns that say which window a value is of: to users timestamps in UTC, within the library int64, microseconds."""

MOMENT = "timestamp"
"""The column that says of which moment a row is that is not added to others: of its own."""

TIME = pa.timestamp("us", "UTC")
"""The Arrow type of clocks and of windows' times in what users read."""

FINAL = "final"
"""The column that is true if a window's value is final: bool."""

Times = NDArray[np.int64]


def length(name: str, given: Duration) -> int:
    """Return the microseconds of a duration that bounds a state; `name` is that of the parameter.

    Raises:
        InvalidInputError: It is not a duration, not longer than 0, or far too long.
    """
    found = positive(name, given)
    if found > LONGEST:
        raise InvalidInputError(f"{name}={given!r}; it must be at most {LONGEST} microseconds.")
    return found


def _text(length: int) -> str:
    return show_duration(length).replace(",", "")


@dataclass(frozen=True)
class SlidingWindow:
    """Windows of one length, one of which begins at each multiple of `slide`: [k * slide, k * slide + size) for every whole k.

    Windows are counted from the epoch.

    Args:
        size: How long each window is: a text such as "3 hours", or a `timedelta`.
        slide: The time between the beginnings of two windows, as a text or a `timedelta`.
        gaps: True allows a slide that is longer than the size, as in sampling: messages in the gaps are in no window.

    Raises:
        InvalidInputError: One of them is not a duration, or not longer than 0, or the slide is longer than the size, and `gaps`
            does not allow that.

    Example:
        >>> SlidingWindow("3 hours", "1 hour")
        SlidingWindow('3 hours', '1 hour')
    """

    size: int
    slide: int

    def __init__(self, size: Duration, slide: Duration, *, gaps: bool = False) -> None:
        object.__setattr__(self, "size", length("size", size))
        object.__setattr__(self, "slide", length("slide", slide))
        if self.slide > self.size and not gaps:
            raise InvalidInputError(
                f"SlidingWindow(size={size!r}, slide={slide!r}) has gaps between its windows, and messages in these do not "
                "count; give a slide that is at most the size, or gaps=True if you mean that."
            )

    def __repr__(self) -> str:
        gaps = ", gaps=True" if self.slide > self.size else ""
        return f"SlidingWindow({_text(self.size)!r}, {_text(self.slide)!r}{gaps})"

    # A pane is a stretch of time in which no window begins or ends: windows share panes.

    def pane(self, times: Times) -> Times:
        """Return the beginning of the pane of each timestamp.

        Args:
            times: Timestamps in microseconds UTC.
        """
        begins, edge = self.last(times), self.size % self.slide
        return begins + np.where(times - begins >= edge, edge, 0) if edge else begins

    def is_met(self, times: Times) -> NDArray[np.bool_]:
        """Return True for each timestamp that is in a window.

        Args:
            times: Timestamps in microseconds UTC.
        """
        return np.asarray(times % self.slide < self.size)

    def first(self, times: Times) -> Times:
        """Return the beginning of the first window that holds each timestamp.

        Args:
            times: Timestamps in microseconds UTC.
        """
        begins: Times = ((times - self.size) // self.slide + 1) * self.slide
        return begins

    def last(self, times: Times) -> Times:
        """Return the beginning of the last window that holds each timestamp.

        Args:
            times: Timestamps in microseconds UTC.
        """
        begins: Times = times // self.slide * self.slide
        return begins

    def identity(self) -> dict[str, int]:
        """Return what the log records of the windows, in microseconds."""
        return {"size": self.size, "step": self.slide}


class TumblingWindow(SlidingWindow):
    """Windows of one length, each of which begins where the one before it ends. They are counted from the epoch.

    Args:
        size: How long each window is: a text such as "1 hour", or a `timedelta`.

    Raises:
        InvalidInputError: The size is not a duration, or not longer than 0.

    Example:
        >>> TumblingWindow("1 hour")
        TumblingWindow('1 hour')
    """

    def __init__(self, size: Duration) -> None:
        super().__init__(size, size)

    def __repr__(self) -> str:
        return f"TumblingWindow({_text(self.size)!r})"


@dataclass(frozen=True)
class SessionWindow:
    """Sessions of a key: messages of which each is less than `gap` after one before it. A session ends `gap` after its last.

    Args:
        gap: The time without a message that ends a session: a text such as "30 minutes", or a `timedelta`.

    Raises:
        InvalidInputError: The gap is not a duration, or not longer than 0.

    Example:
        >>> SessionWindow("30 minutes")
        SessionWindow('30 minutes')
    """

    gap: int

    def __init__(self, gap: Duration) -> None:
        object.__setattr__(self, "gap", length("gap", gap))

    def __repr__(self) -> str:
        return f"SessionWindow({_text(self.gap)!r})"

    def identity(self) -> dict[str, int]:
        """Return what the log records of the windows, in microseconds."""
        return {"gap": self.gap}


@dataclass(frozen=True)
class TimeToLive:
    """A state that is forgotten once its key has had no message for longer than `ttl`: the newest of its sessions, or zero.

    `ttl` is in microseconds.
    """

    ttl: int

    def __repr__(self) -> str:
        return f"TimeToLive({_text(self.ttl)!r})"

    @property
    def gap(self) -> int:
        # A message that is the time to live behind is still of the same state.
        """The gap in microseconds that ends a session."""
        return self.ttl + 1

    def identity(self) -> dict[str, int]:
        """Return what the log records of the time to live, in microseconds."""
        return {"ttl": self.ttl}


@dataclass(frozen=True)
class UntilPassed:
    """Rows that wait until the clock has passed them, and stay for `back` microseconds more."""

    back: int = 0

    def identity(self) -> dict[str, bool | int]:
        """Return what the log records of this."""
        return {"passed": True, "back": self.back} if self.back else {"passed": True}


@dataclass(frozen=True)
class UntilReplaced:
    """A state that counts until another takes its place, or its key was silent for longer than `ttl` microseconds."""

    ttl: int | None

    def identity(self) -> dict[str, int | None]:
        """Return what the log records of this."""
        return {"replaced": self.ttl}


Windowing: TypeAlias = SlidingWindow | SessionWindow | TimeToLive | UntilPassed | UntilReplaced


def from_identity(identity: Mapping[str, Any]) -> Windowing | None:
    """Return the windows or the time to live of a state with this identity, or None."""
    window = identity.get("window")
    if window is None:
        return None
    if "passed" in window:
        return UntilPassed(window.get("back", 0))
    if "replaced" in window:
        return UntilReplaced(window["replaced"])
    if "ttl" in window:
        return TimeToLive(window["ttl"])
    lengths = {name: timedelta(microseconds=length) for name, length in window.items()}
    if "gap" in lengths:
        return SessionWindow(lengths["gap"])
    # The format says step.
    size, slide = lengths["size"], lengths["step"]
    return TumblingWindow(size) if size == slide else SlidingWindow(size, slide, gaps=True)
