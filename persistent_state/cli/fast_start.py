"""Let the Spark that `run` starts on this machine start fast, by files that are kept in the user's folder of caches.

- A home of Spark, in which PySpark's archives of source text are links to the installed modules. Python finds those compiled.
- An archive of the JVM's classes. The second run makes it at its end, so that none is made where no cache outlives a run.

Without these files a start takes longer, and nothing else changes. So whatever fails here is left out.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from persistent_state.run.wall_clock import now_us

KEPT = 30 * 24 * 3600.0
"""Seconds after which an archive of classes that no run has used is deleted."""

_OF_JVM = (
    "SPARK_CONF_DIR",
    "SPARK_DIST_CLASSPATH",
    "SPARK_DRIVER_MEMORY",
    "SPARK_SUBMIT_OPTS",
    "HADOOP_CONF_DIR",
    "YARN_CONF_DIR",
    "JDK_JAVA_OPTIONS",
    "JAVA_TOOL_OPTIONS",
    "_JAVA_OPTIONS",
)
"""The variables on which the JVM's options and its class path depend."""

_ELSEWHERE = ("PYSPARK_GATEWAY_PORT", "SPARK_HOME", "SPARK_REMOTE", "MASTER", "PYSPARK_SUBMIT_ARGS")
"""The variables by which a user, or spark-submit, says which Spark is to run, or where."""

_OWN_CLASSES = re.compile("SharedArchiveFile|ArchiveClassesAtExit|DynamicDump|Xshare")
"""Options by which a user decides about archives of classes."""


class FastStart:
    """The files from which the Spark of one run starts faster; without a home there are none.

    Attributes:
        home: The home of Spark; None to leave it as it is.
        classes: The archive of classes; None to leave that to the JVM.
        makes: Whether this run makes the archive, which is not there.
    """

    def __init__(self, home: Path | None = None, classes: Path | None = None, makes: bool = False) -> None:
        self.home, self.classes, self.makes = home, classes, makes

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let the JVM that starts in this block use the files. Options that the user gives come after these, and win."""
        changed = {}
        if self.home is not None:
            changed["SPARK_HOME"] = str(self.home)
        if self.classes is not None:
            option = "-XX:+RecordDynamicDumpInfo" if self.makes else f"-XX:SharedArchiveFile={self.classes}"
            # The JVM prints its warnings of classes that it can't share, or of an archive that doesn't fit, to the output.
            options = f"{option} -Xlog:cds*=off"
            changed["SPARK_SUBMIT_OPTS"] = f"{options} {os.environ.get('SPARK_SUBMIT_OPTS', '')}".strip()
        before = {name: os.environ.get(name) for name in changed}
        os.environ.update(changed)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value

    def give_up(self) -> FastStart:
        """Never make this archive of classes again: this JVM can't. Return what is left."""
        assert self.classes is not None, "it was tried"
        with suppress(OSError):
            _refusal(self.classes).touch()
        return FastStart(self.home)

    def keep_classes(self) -> None:
        """Make the archive of the classes that the JVM has loaded, if this run is to.

        The session has stopped: a JVM with a folder of settings on its class path ends instead.
        """
        from pyspark import SparkContext

        if not self.makes or self.classes is None or SparkContext._gateway is None:
            return
        made = self.classes.with_suffix(f".{os.getpid()}")
        try:
            with self.classes.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _dump(SparkContext._gateway, made)
                made.replace(self.classes)
        except BlockingIOError:
            return  # Another run makes it.
        except Exception:
            self.give_up()
        finally:
            with suppress(OSError):
                made.unlink(missing_ok=True)
                for old in self.classes.parent.parent.glob("spark-*/classes-*"):
                    if old.stat().st_mtime < now_us() / 1e6 - KEPT:
                        old.unlink()


def fast_start(settings: Mapping[str, str]) -> FastStart:
    """Return what makes a Spark with these settings start faster, and make the home of Spark if it is not there.

    A master that is not local, a JVM that is there already, and a SPARK_HOME of the user's are left alone.
    """
    texts = [*settings.values(), *(os.environ.get(name, "") for name in _OF_JVM)]
    is_local = re.match(r"local(\[|$)", settings.get("spark.master", "local")) and "spark.remote" not in settings
    if not is_local or any(name in os.environ for name in _ELSEWHERE):
        return FastStart()
    try:
        own = _installed("pyspark")
        defaults = [_text(path) for path in _files_of_settings(own)]
        if any(re.search(r"spark\.(master|remote)|SPARK_HOME", text) for text in defaults):
            return FastStart()
        place = _folder() / f"spark-{_digest([str(own), *_stamps([own / 'version.py'])])}"
        if not re.fullmatch(r"[\w./+-]+", str(place)):
            return FastStart()
        is_new = not place.exists()
        if is_new:
            _make(place, own)
        home = place / "home"
        if not _is_whole(home, own):
            return FastStart()
        if any(_OWN_CLASSES.search(text) for text in [*texts, *defaults]):
            return FastStart(home)
        classes = place / f"classes-{_digest([*_of_jvm(settings, own), *defaults])}.jsa"
        if classes.exists():
            os.utime(classes)
            return FastStart(home, classes)
        if is_new or _refusal(classes).exists():
            return FastStart(home)
        return FastStart(home, classes, makes=True)
    except (OSError, RuntimeError):
        return FastStart()


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


def _make(place: Path, own: Path) -> None:
    """Make the home of Spark. If several processes make it at a time, all use the first one's.

    Raises:
        OSError: It can't be made, or this PySpark comes without Spark.
    """
    archives = {archive.name: archive for archive in (own / "python" / "lib").glob("*.zip")}
    if not (own / "bin" / "spark-submit").is_file() or "pyspark.zip" not in archives:
        raise FileNotFoundError(own / "python/lib/pyspark.zip")
    with tempfile.TemporaryDirectory(dir=place.parent, prefix="making-") as folder:
        made = Path(folder, place.name)
        lib = made / "home" / "python" / "lib"
        lib.mkdir(parents=True)
        # Link also what is not there yet, as users add a folder `conf`.
        for name in {"conf", *os.listdir(own)} - {"python", "__pycache__"}:
            (made / "home" / name).symlink_to(own / name)
        for name, archive in archives.items():
            package = _package(name)
            if package is None:
                (lib / name).symlink_to(archive)
            else:
                (lib / name).mkdir()
                (lib / name / package.name).symlink_to(package)
        try:
            made.rename(place)
        except OSError:
            if not place.exists():
                raise


def _is_whole(home: Path, own: Path) -> bool:
    """Return whether a home has its parts. A cleaner of old files may have taken some."""
    wanted = [
        "bin/spark-submit",
        "jars",
        *(f"python/lib/{path.name}" for path in (own / "python" / "lib").glob("*.zip")),
    ]
    return (home / "python/lib/pyspark.zip/pyspark/__init__.py").exists() and all(
        (home / name).exists() for name in wanted
    )


def _package(archive: str) -> Path | None:
    """Return the installed package that equals an archive; None without one."""
    if archive == "pyspark.zip":
        return _installed("pyspark")
    from py4j.version import __version__

    return _installed("py4j") if archive == f"py4j-{__version__}-src.zip" else None


def _of_jvm(settings: Mapping[str, str], own: Path) -> Iterator[str]:
    """Yield what decides whether a JVM can use the archive of another."""
    from persistent_state.engine.spark.java import find_java

    of_driver = ((name, value) for name, value in sorted(settings.items()) if name.startswith("spark.driver."))
    for name, value in [*((name, os.environ.get(name, "")) for name in _OF_JVM), *of_driver]:
        # Properties are no matter, and may differ for each run, as a folder for temporary files does.
        yield f"{name}={re.sub(r'-D[^ ]*', '', value)}"
    java = Path(find_java() or "").resolve()
    yield str(java)
    yield from _stamps([java, *sorted((own / "jars").iterdir())])


def _files_of_settings(own: Path) -> Iterable[Path]:
    folder = Path(os.environ.get("SPARK_CONF_DIR") or own / "conf")
    return (folder / "spark-defaults.conf", folder / "spark-env.sh")


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""


def _stamps(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        status = path.stat()
        yield f"{path.name} {status.st_mtime_ns} {status.st_size}"


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def _refusal(classes: Path) -> Path:
    return classes.with_suffix(".refused")


def _dump(gateway: Any, path: Path) -> None:
    """Let the JVM write an archive of its classes, as the command VM.cds of its diagnosis does."""
    jvm = gateway.jvm

    def array(kind: Any, *items: Any) -> Any:
        made = gateway.new_array(kind, len(items))
        for number, item in enumerate(items):
            made[number] = item
        return made

    lang, class_of = jvm.java.lang, jvm.java.lang.Class.forName
    name = jvm.javax.management.ObjectName("com.sun.management:type=DiagnosticCommand")
    kinds = ("[Ljava.lang.Object;", "[Ljava.lang.String;")
    # By the interface, as the server's own class can't be called from outside.
    invoke = class_of("javax.management.MBeanServer").getMethod(
        "invoke", array(lang.Class, name.getClass(), class_of("java.lang.String"), *map(class_of, kinds))
    )
    words = array(lang.Object, array(lang.String, "dynamic_dump", str(path)))
    server = lang.management.ManagementFactory.getPlatformMBeanServer()
    invoke.invoke(server, array(lang.Object, name, "vmCds", words, array(lang.String, kinds[1])))
