"""Compare the packages that are installed here with those that this one needs, and each of its extras."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING

from persistent_state.cli.doctor.check import FAIL, OK, WARN, Check
from persistent_state.cli.doctor.server import server_url
from persistent_state.errors import InvalidInputError

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

OURS = "persistent-state"

SPARK = "pyspark"

OF_A_CHECKOUT = ("demo", "examples", "benchmarks", "docs", "test", "servers", "release", "lint")
"""The extras that no part of the library needs."""


@dataclass(frozen=True)
class Need:
    """A package that is needed, always or for an extra, and the bounds of its version, such as `<5,>=4.2`."""

    package: str
    bounds: SpecifierSet
    extra: str | None
    their_extras: Collection[str]

    def found(self) -> str | None:
        """Return the version that is installed; None if the package is not."""
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return None

    def wanted(self) -> str:
        """Return what pip has to be given to install it."""
        return f"'{self.package}{self.bounds}'"


def check_packages(with_spark: bool) -> Iterator[Check]:
    """Yield a check of what is always needed, and one of each extra that is installed. Without Spark PySpark is not needed."""
    try:
        needs = [need for need in map(read_need, _required()) if with_spark or need.package != SPARK]
    except ImportError:
        yield Check("packages", FAIL, "packaging can't be imported; pip install packaging.")
        return
    if not needs:
        yield Check(
            "packages", WARN, f"{OURS} is not installed as a package, so no versions are compared; let pip install it."
        )
        return
    yield _always([need for need in needs if need.extra is None], with_spark)
    extras = [name for name in dict.fromkeys(need.extra for need in needs) if name and name not in OF_A_CHECKOUT]
    absent = []
    for extra in extras:
        of_extra = list(_of(extra, needs))
        if all(need.found() for need in of_extra):
            yield _check(f"extra {extra}", of_extra)
        else:
            absent.append(extra)
    if absent:
        yield Check("other extras", OK, f"not installed: {', '.join(absent)}")


def read_need(line: str) -> Need:
    """Return what a line of the metadata needs."""
    # Not at the top: the doctor says that it is missing, and no other command needs it.
    from packaging.requirements import Requirement

    read = Requirement(line)
    extra = re.search(r'extra == "([^"]+)"', str(read.marker))
    return Need(read.name, read.specifier, extra[1] if extra else None, read.extras)


def within(version: str, bounds: SpecifierSet) -> bool:
    """Return whether a version is within bounds. A version before a release counts as that release."""
    # A platform's version, as 4.2.1-amzn-0, is not one for packaging: only its numbers are compared.
    release = re.match(r"\d+(\.\d+)*", version)
    return release is not None and release[0] in bounds


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


def _always(needs: Sequence[Need], with_spark: bool) -> Check:
    missing = [need for need in needs if not need.found() and not find_spec(need.package)]
    if missing:
        names = ", ".join(need.package for need in missing)
        return Check(
            "packages", FAIL, f"{names} can't be imported; pip install {' '.join(n.wanted() for n in missing)}."
        )
    if with_spark and (problem := _not_together()):
        return Check("packages", FAIL, problem)
    return _check("packages", needs)


def _not_together() -> str | None:
    """Return why a start would refuse the PySpark and the PyArrow that are here; None if it would not."""
    if server_url():
        # The server's workers have packages of their own.
        return None
    try:
        # Not at the top, since both take a while.
        import pyarrow
        import pyspark

        from persistent_state.engine.spark.versions import check_pyarrow, state_serializer

        check_pyarrow(pyspark.__version__, pyarrow.__version__, state_serializer)
    except InvalidInputError as error:
        return str(error)
    except Exception as error:
        return f"pyspark or pyarrow can't be imported: {type(error).__name__}: {error}; install ones that go together."
    return None


def _told_by_itself(package: str) -> str | None:
    """Return the version that a module itself has. A platform may bring a package that no installer knows of."""
    try:
        version = getattr(import_module(package), "__version__", None)
    except ImportError:
        return None
    return version if isinstance(version, str) and version[:1].isdigit() else None


def _check(name: str, needs: Sequence[Need]) -> Check:
    found = [(need, need.found() or _told_by_itself(need.package)) for need in needs]
    if problems := [problem for need, version in found if (problem := _problem(need, version))]:
        return Check(name, WARN, " ".join(problems))
    return Check(name, OK, ", ".join(f"{need.package} {version}" for need, version in found))


def _problem(need: Need, version: str | None) -> str | None:
    """Return what is wrong with the version of a package, and what to do; None if it is within the bounds."""
    if version is None:
        return f"{need.package} does not tell its version; see that it is within {need.bounds}."
    if within(version, need.bounds):
        return None
    if need.found():
        return f"{need.package} {version} is outside {need.bounds}; pip install {need.wanted()}."
    return f"{need.package} {version} is outside {need.bounds}, and pip did not install it; take a platform that has another."
