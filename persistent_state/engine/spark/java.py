"""Check that Spark finds a Java that it can run on. Standard library only: `make` runs this file before it installs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

OLDEST = 17


def require_java() -> None:
    """Require that the `java` which Spark will start, of JAVA_HOME or else on PATH, is 17 or newer.

    Raises:
        InvalidInputError: There is no Java, or it is older or does not run. The message says what to install.
    """
    # Not at the top: `make` runs this file by its path, where the package can't be imported yet.
    from persistent_state.errors import InvalidInputError

    if problem := java_problem():
        raise InvalidInputError(problem)


def java_problem() -> str | None:
    """Return what is wrong with this machine's Java and what to do about it, in one sentence; None if nothing is."""
    java, home = find_java(), os.environ.get("JAVA_HOME")
    if java is None:
        what_is_there = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on PATH"
    else:
        version = java_version(java)
        if version is not None and version >= OLDEST:
            return None
        what_is_there = f"{java} does not tell its version" if version is None else f"{java} is version {version}"
    return (
        f"Java {OLDEST} or newer is needed, and {what_is_there}: install one (for example apt-get install "
        f"openjdk-{OLDEST}-jre-headless) and let JAVA_HOME, or PATH if that is not set, lead to it."
    )


def find_java() -> str | None:
    """Return the path of the `java` that Spark will start; None if Spark will find none."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=os.path.join(home, "bin") if home else None)


def java_version(java: str) -> int | None:
    """Return the major version of the program `java`: 8 for "1.8.0_392", 21 for "21-ea". None if it prints none."""
    try:
        ran = subprocess.run([java, "-version"], stdin=subprocess.DEVNULL, capture_output=True, errors="replace")
    except OSError:
        return None
    # At the start of any line: the JVM may print the options that it picked up first.
    version = re.search(r'^\w+ version "(?:1\.)?(\d+)', ran.stderr, re.MULTILINE)
    return int(version[1]) if version else None


if __name__ == "__main__":
    sys.exit(java_problem())
