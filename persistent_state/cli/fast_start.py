"""Let the Spark that `run` starts on this machine start fast: its Python processes import modules that are compiled.

Spark lets them import PySpark from an archive of source text, which each of them compiles. In a home of Spark in the user's
folder of caches, the archives are links to the installed modules instead, which are compiled. Without this home a start takes
longer, and nothing else changes. So whatever fails here is left out.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

_ELSEWHERE = ("PYSPARK_GATEWAY_PORT", "SPARK_HOME", "SPARK_REMOTE", "MASTER", "PYSPARK_SUBMIT_ARGS")
"""The variables by which a user, or spark-submit, says which Spark is to run, or where."""


@contextmanager
def spark_home(home: Path | None) -> Iterator[None]:
    """Let the JVM that starts in this block use a home of Spark; None to leave it as it is."""
    if home is None:
        yield
        return
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


def fast_home(settings: Mapping[str, str]) -> Path | None:
    """Return the home from which a Spark with these settings starts faster, and make it if it is not there.

    A master that is not local, a JVM that is there already, and a SPARK_HOME of the user's are left alone: then it is None.
    """
    is_local = re.match(r"local(\[|$)", settings.get("spark.master", "local")) and "spark.remote" not in settings
    if not is_local or any(name in os.environ for name in _ELSEWHERE):
        return None
    try:
        own = _installed("pyspark")
        if _is_elsewhere(own):
            return None
        version = (own / "version.py").stat()
        mark = f"{own} {version.st_mtime_ns} {version.st_size}"
        home = _folder() / f"spark-{hashlib.sha256(mark.encode()).hexdigest()[:16]}"
        # Spark's scripts take a path apart at spaces, and Java may not read others than these.
        if not re.fullmatch(r"[\w./+-]+", str(home), re.ASCII):
            return None
        if not _is_whole(home, own):
            _make(home, own)
        return home if _is_whole(home, own) else None
    except (OSError, RuntimeError):
        return None


def _is_elsewhere(own: Path) -> bool:
    """Return whether PySpark would start another Spark than its own, or one that Spark's own files of settings name."""
    from pyspark.find_spark_home import _find_spark_home

    folder = Path(os.environ.get("SPARK_CONF_DIR") or own / "conf")
    for path in (folder / "spark-defaults.conf", folder / "spark-env.sh"):
        with suppress(FileNotFoundError):
            lines = path.read_text(errors="replace").splitlines()
            if any(re.search(r"^[^#]*(spark\.(master|remote)|SPARK_HOME)", line) for line in lines):
                return True
    return not own.samefile(_find_spark_home())


def _folder() -> Path:
    """Return the folder of this library in the user's caches.

    Raises:
        OSError: It can't be made, or others may write it.
        RuntimeError: The user has no home.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    folder = (Path(given) if os.path.isabs(given) else Path("~/.cache").expanduser()) / "persistent-state"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022 or not os.access(folder, os.W_OK):
        raise PermissionError(f"{folder} is not this user's alone")
    return folder


def _installed(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None or not os.path.isfile(spec.origin):
        raise FileNotFoundError(package)
    return Path(spec.origin).parent


def _make(home: Path, own: Path) -> None:
    """Make the home of Spark, of links alone. If several processes make it at a time, all use one of theirs.

    Raises:
        OSError: It can't be made, or this PySpark comes without Spark.
    """
    with tempfile.TemporaryDirectory(dir=home.parent, prefix="making-") as folder:
        made = Path(folder, home.name)
        lib = made / "python" / "lib"
        lib.mkdir(parents=True)
        # Link also what is not there yet, as users add a folder `conf`.
        for name in {"conf", *os.listdir(own)} - {"python", "__pycache__"}:
            (made / name).symlink_to(own / name)
        for archive in (own / "python" / "lib").glob("*.zip"):
            package = _package(archive.name)
            if package is None:
                (lib / archive.name).symlink_to(archive)
            else:
                (lib / archive.name).mkdir()
                (lib / archive.name / package.name).symlink_to(package)
        if not _is_whole(home, own):
            # A cleaner of old files may have taken parts of it.
            with suppress(OSError):
                home.rename(Path(folder, "before"))
        with suppress(OSError):
            made.rename(home)


def _is_whole(home: Path, own: Path) -> bool:
    """Return whether a home has its parts."""
    parts = ["bin/spark-submit", "jars", "python/lib/pyspark.zip/pyspark/__init__.py"]
    parts += [f"python/lib/{archive.name}" for archive in (own / "python" / "lib").glob("*.zip")]
    return all((home / part).exists() for part in parts)


def _package(archive: str) -> Path | None:
    """Return the installed package that equals an archive; None without one."""
    if archive == "pyspark.zip":
        return _installed("pyspark")
    from py4j.version import __version__

    return _installed("py4j") if archive == f"py4j-{__version__}-src.zip" else None
