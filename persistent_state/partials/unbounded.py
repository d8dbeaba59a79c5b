"""States without bounds in time: a key has one value, the fold of all its rows."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from persistent_state.event_time.clocks import BEGINNING
from persistent_state.partials import fold
from persistent_state.partials.layout import Kind, Layout, Levels, from_clock, with_values
from persistent_state.partials.lookup import current, folded
from persistent_state.partials.since import Since
from persistent_state.partials.so_far import OfKeys


@dataclass(frozen=True)
class Unbounded(Kind):
    """A state that is kept for ever."""

    def state(self, levels: Levels, layout: Layout, clock: int) -> pa.Table:
        return fold.fold_keys(levels, layout).select(["hash", *layout.key_names, "value"])

    def values(self, levels: Levels, layout: Layout, since: Since, clock: int, floor: int) -> pa.Table:
        if since.all or since.clock == BEGINNING:
            return self.state(levels, layout, clock)
        changed = fold.fold_keys([from_clock(level, since.clock) for level in levels], layout)
        return with_values(changed, folded(changed, levels, layout)).select(["hash", *layout.key_names, "value"])

    def so_far(self, asked: pa.Table, levels: Levels, layout: Layout, lowest: int) -> OfKeys:
        return OfKeys(layout.monoid.from_arrow(current(asked, levels, layout)), layout.monoid)
