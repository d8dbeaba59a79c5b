"""The ways in which a state lies in time, a class for each: without bounds, in windows, in sessions, with a time to live.

What depends on that is asked of the class (see `Kind`). Whether updates have an order, and whether messages with an id count
once, does not depend on it: those are two properties of `Layout` that every kind combines with.
"""

from __future__ import annotations

from typing import Any

from monoids import Monoid, MonoidError
from persistent_state.partials.layout import Kind
from persistent_state.partials.newest import Newest, Versions
from persistent_state.partials.panes import Panes
from persistent_state.partials.sessions import Living, Sessions
from persistent_state.partials.type_names import type_named
from persistent_state.partials.unbounded import Unbounded
from persistent_state.partials.waiting import Rows, Waiting
from persistent_state.windows import SlidingWindow, TimeToLive, UntilPassed, UntilReplaced, Windowing


def monoid_of(windowing: Windowing | None, type: str) -> Monoid[Any] | None:
    """Return the monoid of a state of the library's own that lies in time in this way, given its type; None for others.

    Raises:
        MonoidError: The type is not known.
    """
    if not isinstance(windowing, (UntilPassed, UntilReplaced)):
        return None
    try:
        found = type_named(type)
    except ValueError as error:
        raise MonoidError(f"{error} Give the task itself.") from None
    return Rows(found) if isinstance(windowing, UntilPassed) else Newest(found.field("state").type)


def kind_of(windowing: Windowing | None) -> Kind:
    """Return how a state with these windows or this time to live lies in time; None is neither."""
    if windowing is None:
        return Unbounded()
    if isinstance(windowing, SlidingWindow):
        return Panes(windowing)
    if isinstance(windowing, UntilPassed):
        return Waiting(windowing.back)
    if isinstance(windowing, UntilReplaced):
        return Versions(windowing.ttl)
    return Living(windowing.gap) if isinstance(windowing, TimeToLive) else Sessions(windowing.gap)
