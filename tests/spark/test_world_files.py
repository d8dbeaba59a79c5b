"""Spark's own reader reads of the files that the world writes what a `FileSource` reads, but for what docs/files.md lists."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.soak import IS_SOAK, soak_or
from tests.sources.truth import DAY, Bad, Misfit, Number, Time, is_list, of_arrow, of_json, same
from tests.sources.world_files import World, WorldFile, differences, read, spark_world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BAD = object()
"""Stands for a value that does not fit its column."""


def is_number(type: pa.DataType) -> bool:
    return pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type)


RULES: dict[str, Callable[[pa.DataType, Any, Any, Any], bool]] = {
    "a space beside a number or a boolean": lambda type, text, here, there: (
        there is None and text != text.strip() and (is_number(type) or pa.types.is_boolean(type))
    ),
    "0 and 1 for a boolean": lambda type, text, here, there: (
        there is None and type == pa.bool_() and text in ("0", "1")
    ),
    "inf and nan for a double": lambda type, text, here, there: (
        there is None and isinstance(here, float) and not math.isfinite(here)
    ),
    "a NUL in CSV": lambda type, text, here, there: there == here.replace("\0", ""),
    "an empty text of CSV": lambda type, text, here, there: there is None and text == here == "",
    "a decimal is rounded": lambda type, text, here, there: (
        here is BAD and isinstance(there, Decimal) and abs(there - Decimal(text)) <= Decimal(1).scaleb(-type.scale)
    ),
    "a number that is too large for a double": lambda type, text, here, there: (
        here is BAD and isinstance(there, float) and math.isinf(there) and "inf" not in text
    ),
    "a zone for timestamp_ntz": lambda type, text, here, there: (
        there is None and type == pa.timestamp("us") and bool(re.search(r":\d\d.*([zZ]|UTC|[+-][0-9:]+)$", text))
    ),
    "a z for UTC": lambda type, text, here, there: there is None and isinstance(here, Time) and text.endswith("z"),
    "a date with something behind it": lambda type, text, here, there: (
        here is BAD and type == pa.date32() and isinstance(there, Time) and len(text.strip()) > 10
    ),
    "a text of a whole number for a date in JSON": lambda type, text, here, there: (
        here is BAD and type == pa.date32() and same(there, Time("date", int(text) * DAY))
    ),
    "a number for a time in JSON": lambda type, text, here, there: (
        here is BAD and isinstance(text, Number) and isinstance(there, Time)
    ),
    "128 to 255 for a tinyint in JSON": lambda type, text, here, there: (
        here is BAD and type == pa.int8() and int(text) == there + 256
    ),
    "anything for a text in JSON": lambda type, text, here, there: (
        here is BAD and type == pa.string() and isinstance(there, str)
    ),
}
"""By what docs/files.md lists: whether a type, what is written, what is read here and what Spark reads show this difference."""

used: Counter[str] = Counter()


def is_listed(type: pa.DataType, text: Any, here: Any, there: Any) -> bool:
    for name, rule in RULES.items():
        try:
            if rule(type, text, here, there):
                used[name] += 1
                return True
        except (ArithmeticError, ValueError, AttributeError, TypeError):
            pass
    return False


def disagreements(type: pa.DataType, raw: Any, there: Any) -> Iterator[str]:
    """Yield where Spark reads another value of JSON. A value of which a part does not fit may be null to it as a whole."""
    try:
        here = of_json(raw, type)
    except Misfit:
        here = BAD
    if same(here, there) or (here is BAD and there is None):
        return
    if isinstance(there, dict) and isinstance(raw, dict):
        for each in type:
            yield from disagreements(each.type, raw.get(each.name), there[each.name])
    elif isinstance(there, list) and isinstance(raw, list) and len(raw) == len(there):
        for one, other in zip(raw, there, strict=True):
            yield from disagreements(type.value_type, one, other)
    elif there is None and is_list(type) and has_listed_null(type, raw):
        return
    elif not is_listed(type, raw, here, there):
        yield f"{raw!r} for {type} is {there!r} to Spark, and here {'bad' if here is BAD else repr(here)}"


def has_listed_null(type: pa.DataType, raw: Any) -> bool:
    """Return whether Spark takes a part of a value, which is read here, for one that does not fit."""
    if isinstance(raw, dict):
        return any(has_listed_null(each.type, raw.get(each.name)) for each in type)
    if isinstance(raw, list):
        return any(has_listed_null(type.value_type, each) for each in raw)
    return raw is not None and is_listed(type, raw, of_json(raw, type), None)


def by_spark(spark: SparkSession, world: World, folder: Path, format: str) -> dict[str, list[dict[str, Any]]]:
    """Return the rows that Spark reads of each file."""
    from persistent_state.engine.spark.versions import spark_types

    reader = spark.read.schema(spark_types(world.schema))
    if format == "csv":
        csv = world.options["csv"]
        # RFC 4180 doubles a quote.
        reader = reader.options(header=True, sep=csv.delimiter, quote=csv.quote, escape=csv.quote)
    table = reader.format(format).load(str(folder)).select("*", "_metadata.file_name").toArrow()
    found: dict[str, list[dict[str, Any]]] = {file.name: [] for file in world.files}
    columns = [[value for chunk in column.chunks for value in of_arrow(chunk)] for column in table.columns]
    for *values, name in zip(*columns, strict=True):
        found[name].append(dict(zip(world.schema.names, values, strict=True)))
    return found


def compared(schema: pa.Schema, file: WorldFile, rows: list[dict[str, Any]], format: str) -> Iterator[str]:
    """Yield where Spark reads other rows of a file than are in it."""
    if len(rows) != len(file.rows):
        yield f"{len(rows)} rows, not {len(file.rows)}"
        return
    for place, (right, row) in enumerate(zip(file.rows, rows, strict=True)):
        for each in schema:
            there = row[each.name]
            if format == "json":
                yield from disagreements(each.type, file.raw[place].get(each.name), there)
                continue
            if isinstance(right, Bad):
                if each.name not in right.columns:
                    continue
                here = BAD
            else:
                here = right[each.name]
            raw = file.raw[place].get(each.name) if file.raw else None
            if same(here, there) or (here is BAD and there is None) or is_listed(each.type, raw, here, there):
                continue
            yield f"{raw!r} for {each.type} is {there!r} to Spark, and here {'bad' if here is BAD else repr(here)}"


@pytest.mark.soak
def test_spark_reads_the_same_values(spark: SparkSession, tmp_path: Path) -> None:
    found = []
    for seed in range(soak_or(ci=4, soak=150)):
        for format in ("parquet", "csv", "json"):
            world = spark_world(random.Random(seed), format)
            (folder := tmp_path / f"{format}-{seed}").mkdir()
            here, there = read(world, folder), by_spark(spark, world, folder, format)
            for file in world.files:
                assert not [*differences(file, here[file.name])]
                found += [
                    f"seed {seed}, {file.name}: {text}"
                    for text in compared(world.schema, file, there[file.name], format)
                ]
    assert not found, "\n".join(found)
    if IS_SOAK:
        assert RULES.keys() == used.keys(), "a difference that Spark no longer shows"
