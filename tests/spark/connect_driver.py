"""A driver of the demo's tasks that has no JVM: it drives them by a server of Spark Connect.

    python -m tests.spark.connect_driver FOLDER URL SHARDS [--continuous]

FOLDER/stream has the flights, FOLDER/store the state. It prints each progress as a line of JSON, and ends when everything is
read and closed, or with --continuous when it is asked to stop.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from examples.exactly_once import Place, application

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from persistent_state import Progress


def session(url: str) -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.builder.remote(url).getOrCreate()  # type: ignore[attr-defined, no-any-return]


def main() -> None:
    folder, url, shards = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

    def tell(progress: Progress) -> None:
        print(json.dumps({**asdict(progress), "pid": os.getpid()}), flush=True)

    app = application(Place(folder, str(folder / "store"), {}), shards)
    if "--continuous" in sys.argv:
        app.start(session(url), on_progress=tell).await_termination()
    else:
        app.run(session(url), drain=True, on_progress=tell)


if __name__ == "__main__":
    try:
        main()
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    # The client's threads may not end.
    os._exit(0)
