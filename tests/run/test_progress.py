"""The line of a progress."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from persistent_state.engine import Progress
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.protocol.deliver import Delivered
from persistent_state.run.progress import line_of


def test_the_line_of_a_progress_has_null_for_a_clock_that_is_not_there_yet() -> None:
    first = Progress(
        task="A", epoch=1, batch=1, messages=2, replayed=0, skipped=0, replayed_or_late=0, copies=0, late=0, bad=0,
        reasons={}, upstream_min=None, clock=BEGINNING, global_clock=BEGINNING, outputs={"sink": Delivered(None, 0)},
    )  # fmt: skip
    assert json.loads(line_of(first)) == {**asdict(first), "clock": None, "global_clock": None}
    ahead = replace(first, upstream_min=25, clock=20)
    assert json.loads(line_of(ahead)) == {**asdict(ahead), "global_clock": None}
