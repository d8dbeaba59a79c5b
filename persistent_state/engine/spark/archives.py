"""Compile the modules in PySpark's archives: `python -m persistent_state.engine.spark.archives`.

Spark's Python processes import PySpark from archives of source text. Python keeps nothing that it compiles of an archive, so
each process compiles PySpark again, unless the archive has the compiled modules, too.
"""

from __future__ import annotations

import os
import py_compile
import sys
import tempfile
import warnings
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile


def compile_archives(home: Path) -> list[Path]:
    """Add the modules of each archive of a home of Spark compiled by this version of Python, and return the archives.

    Other versions of Python go on with the source text. No Spark of this home may run meanwhile.

    Raises:
        OSError: An archive can't be read or replaced.
    """
    archives = sorted((home / "python" / "lib").glob("*.zip"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # They are of PySpark's own tests.
        for archive in archives:
            _compile(archive)
    return archives


def _compile(archive: Path) -> None:
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        made, source, compiled = Path(folder, "archive"), Path(folder, "module.py"), Path(folder, "module.pyc")
        with ZipFile(archive) as old, ZipFile(made, "w", ZIP_DEFLATED) as new:
            sources = {name for name in old.namelist() if name.endswith(".py")}
            for entry in old.infolist():
                if entry.filename[:-1] in sources:
                    continue  # It was compiled before.
                data = old.read(entry)
                new.writestr(entry, data)
                if entry.filename in sources:
                    source.write_bytes(data)
                    py_compile.compile(
                        str(source),
                        str(compiled),
                        dfile=f"{archive}/{entry.filename}",
                        doraise=True,
                        # Python need not look whether the source text, which stands beside it, has changed.
                        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
                    )
                    new.write(compiled, f"{entry.filename}c")
        made.chmod(archive.stat().st_mode)
        os.replace(made, archive)


def main() -> int:
    """Compile those of the Spark that this Python would start, and print their names."""
    from pyspark.find_spark_home import _find_spark_home

    home = Path(_find_spark_home())
    try:
        archives = compile_archives(home)
    except OSError as error:
        print(f"SPARK_HOME={home}: {error}; let this user write there, or run it as one who may.", file=sys.stderr)
        return 1
    print(*archives, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
