"""A driver adds entries as long as the application is its own."""

from __future__ import annotations

import pytest

from persistent_state.errors import FencedError, StoreUnavailableError
from persistent_state.protocol.next_entry import newest_own
from persistent_state.store.log import Log
from tests import core
from tests.protocol.test_global_clock import ROW, Total


def test_an_application_is_its_drivers_own_until_a_newer_driver_takes_over() -> None:
    plan = core.plan_of(Total("a"), ROW)
    log = Log(plan.files, "app")
    first = core.start(log, [plan])
    assert newest_own(log, 1) == first
    # The listing that a worker of the next driver gets may be of before.
    with pytest.raises(StoreUnavailableError, match="does not list what epoch 2 of app wrote yet"):
        newest_own(log, 2)
    core.start(log, [plan])
    with pytest.raises(FencedError, match=r"a newer driver owns app; this one \(epoch 1\) has stopped"):
        newest_own(log, 1)
