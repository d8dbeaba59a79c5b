"""Start Spark, and let one of its Python workers do something: `python -m persistent_state.engine.spark.trial`.

The last line that it prints is an object of JSON, with the versions of Spark and of PySpark, or with an error.
"""

from __future__ import annotations

import json
import os
import re
import sys


def try_spark() -> dict[str, str]:
    """Start a session on this machine, or one of the server that SPARK_REMOTE names, and run a job in Python."""
    import pyspark
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("persistent-state doctor")
    if not os.environ.get("SPARK_REMOTE"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master("local[1]").config("spark.ui.enabled", "false")
    session = builder.getOrCreate()
    try:
        session.range(1).mapInArrow(lambda batches: batches, "id long").collect()
        return {"spark": session.version, "pyspark": pyspark.__version__}
    finally:
        session.stop()


def reason(text: str) -> str:
    """Return the line of an error of Spark that names the cause: the last that names an error, or else the first."""
    lines = text.strip().splitlines() or [""]
    causes = [line for line in lines if re.match(r"(?:Caused by: )?[\w.]+(?:Error|Exception): ", line)]
    return (causes or lines[:1])[-1].removeprefix("Caused by: ")


def main() -> None:
    """Print how it went."""
    try:
        result = try_spark()
    except Exception as error:
        result = {"error": f"Spark does not run: {reason(str(error))}"}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
