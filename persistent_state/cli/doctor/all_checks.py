"""Make all checks, one after the other, and say how they went."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from persistent_state.cli.doctor.check import Check
from persistent_state.cli.doctor.machine import check_machine
from persistent_state.cli.doctor.packages import check_packages
from persistent_state.cli.doctor.store import check_store


def all_checks(
    store: str | None, options: Mapping[str, Any], now: Callable[[], float], with_spark: bool
) -> Iterator[Check]:
    """Yield all checks as they are made: of the packages, of the store, and of this machine.

    Args:
        store: The store's folder or url; None for none.
        options: The store's options.
        now: Returns the time of this machine, in seconds since 1970.
        with_spark: Whether Spark, Java and PySpark are needed.
    """
    yield from check_packages(with_spark)
    if store is not None:
        yield from check_store(store, options, now)
    # Last, since it takes longest.
    yield from check_machine(with_spark)
