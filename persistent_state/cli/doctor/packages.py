"""Compare the packages that are installed here with those that this one needs, and each of its extras."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec

from persistent_state.cli.doctor.check import FAIL, OK, WARN, Check

OURS = "persistent-state"

OF_A_CHECKOUT = ("demo", "benchmarks", "docs", "test")
"""The extras that no part of the library needs."""

_COMPARE = {">=": operator.ge, "<": operator.lt}


@dataclass(frozen=True)
class Need:
    """A package that is needed, always or for an extra, and the bounds of its version, such as `<5,>=4.2`."""

    package: str
    bounds: str
    extra: str | None
    their_extras: tuple[str, ...]

    def found(self) -> str | None:
        """Return the version that is installed; None if there is none."""
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return None

    def outside(self) -> str | None:
        """Return in words that the installed version is outside the bounds; None if it is within."""
        version = self.found()
        if version is None or within(version, self.bounds):
            return None
        return f"{self.package} {version} is outside {self.bounds}"


def check_packages() -> Iterator[Check]:
    """Yield a check of what is always needed, and one of each extra that is installed."""
    needs = [read_need(line) for line in _required()]
    if not needs:
        yield Check(
            "packages", WARN, f"{OURS} is not installed as a package, so no versions are compared; pip install it."
        )
        return
    yield _always([need for need in needs if need.extra is None])
    extras = [name for name in dict.fromkeys(need.extra for need in needs) if name and name not in OF_A_CHECKOUT]
    absent = []
    for extra in extras:
        of_extra = list(_of(extra, needs))
        if all(need.found() for need in of_extra):
            yield _check(f"extra {extra}", of_extra, f"{OURS}[{extra}]")
        else:
            absent.append(extra)
    if absent:
        yield Check("other extras", OK, f"not installed: {', '.join(absent)}")


def read_need(line: str) -> Need:
    """Return what a line of the metadata needs."""
    requirement, _, marker = line.partition(";")
    name, theirs, bounds = re.findall(r"^\s*([\w.-]+)\s*(?:\[([^]]*)\])?\s*\(?([^)]*)", requirement)[0]
    extra = re.search(r"""extra\s*==\s*['"]([^'"]+)""", marker)
    return Need(name, bounds.strip(), extra[1] if extra else None, tuple(theirs.split(",") if theirs else ()))


def within(version: str, bounds: str) -> bool:
    """Return whether a version is within bounds. A version before a release counts as that release."""
    return all(
        _COMPARE[compare](_release(version), _release(bound))
        for compare, bound in re.findall(r"(>=|<)\s*([\d.]+)", bounds)
    )


def _release(version: str) -> list[int]:
    numbers = [int(number) for number in re.split(r"[^\d.]", version)[0].split(".") if number]
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers


def _required() -> list[str]:
    try:
        return metadata.requires(OURS) or []
    except metadata.PackageNotFoundError:
        return []


def _of(extra: str, needs: Sequence[Need]) -> Iterator[Need]:
    """Yield what an extra brings, also by another extra."""
    for need in needs:
        if need.extra == extra:
            if need.package == OURS:
                for other in need.their_extras:
                    yield from _of(other, needs)
            else:
                yield need


def _always(needs: Sequence[Need]) -> Check:
    # A platform may bring a package that no installer knows of.
    missing = [need.package for need in needs if not need.found() and not find_spec(need.package)]
    if missing:
        return Check("packages", FAIL, f"{', '.join(missing)} can't be imported; pip install {OURS}.")
    return _check("packages", needs, OURS)


def _check(name: str, needs: Sequence[Need], install: str) -> Check:
    if outside := [words for need in needs if (words := need.outside())]:
        return Check(name, WARN, f"{', '.join(outside)}; pip install '{install}' chooses versions that are tried.")
    return Check(name, OK, ", ".join(f"{need.package} {need.found() or '(version unknown)'}" for need in needs))
