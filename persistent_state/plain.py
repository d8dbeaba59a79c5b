"""Arrow values and clocks as JSON and text: what people, files and other programs are shown."""

from __future__ import annotations

import base64
import json
import math
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa

from persistent_state.clock import BEGINNING
from persistent_state.errors import InvalidInput

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def to_json(value: Any) -> str:
    """One line of JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def plain(value: pa.Scalar) -> Any:
    """An Arrow value as JSON knows values.

    Times are ISO text, or an integer of their unit where they are beyond the year 9999; bytes are base64, decimals, NaN and
    infinities text, and maps objects whose keys are text.
    """
    kind = pa.types
    if not value.is_valid:
        return None
    if kind.is_struct(value.type):
        return {name: plain(value[place]) for place, name in enumerate(field.name for field in value.type)}
    if kind.is_map(value.type):
        return {_key(entry[0]): plain(entry[1]) for entry in value.values}
    if kind.is_nested(value.type):
        return [plain(item) for item in value.values]
    if kind.is_dictionary(value.type):
        return plain(value.dictionary[value.index.as_py()])
    if kind.is_timestamp(value.type) or kind.is_time(value.type) or kind.is_date(value.type):
        return _time(value)
    if kind.is_duration(value.type):
        return value.cast(pa.int64()).as_py()
    found = value.as_py()
    if isinstance(found, bytes):
        return base64.b64encode(found).decode()
    if kind.is_decimal(value.type) or (isinstance(found, float) and not math.isfinite(found)):
        return str(found)
    return found


def _key(value: pa.Scalar) -> str:
    found = plain(value)
    return found if isinstance(found, str) else to_json(found)


def _time(value: pa.Scalar) -> Any:
    try:
        found = value.as_py()
    except (OverflowError, ValueError):
        return value.value
    # pandas has nanoseconds, where it is there.
    return _zulu(found.isoformat())


def _zulu(iso: str) -> str:
    return iso.removesuffix("+00:00") + "Z" if iso.endswith("+00:00") else iso


def show_clock(clock: int | None) -> str:
    """A clock (microseconds UTC) as ISO text; as the number itself beyond the years 1 to 9999."""
    if clock is None or clock == BEGINNING:
        return "none yet"
    try:
        return _zulu((_EPOCH + timedelta(microseconds=clock)).isoformat())
    except OverflowError:
        return str(clock)


def full_clock(clock: int | None) -> str:
    """Return a clock as ISO text and as microseconds, of which Python takes the one and the command line both."""
    return show_clock(clock) if clock is None or clock == BEGINNING else f"{show_clock(clock)} ({clock})"


def show_identity(value: Any) -> str:
    """Return a part of a task's identity as people write it: `Sum(double)`, `word: string`."""
    if isinstance(value, list):
        return ", ".join(f"{column['name']}: {column['type']}" for column in value) or "none"
    if not isinstance(value, dict):
        return "none" if value is None else str(value)
    if "parameters" not in value:
        # What bounds a state in time, in microseconds.
        return ", ".join(f"{name}={part} microseconds" for name, part in value.items())
    parts = [f"{name}={show_identity(part)}" for name, part in value["parameters"].items()]
    # The type of what is put together is said by its parts.
    is_composed = any(isinstance(part, dict) for part in value["parameters"].values())
    return f"{value['name']}({', '.join([*parts, *([] if is_composed else [value['type']])])})"


def read_clock(text: str) -> int:
    """A clock from microseconds, or from ISO text, which is UTC unless it says a zone.

    Raises:
        InvalidInput: it is neither.
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
    except ValueError as error:
        raise InvalidInput(
            f"clock={text!r} is no time; say microseconds since 1970, or ISO such as 2013-01-31T12:00:00Z."
        ) from error
    zoned = found if found.tzinfo else found.replace(tzinfo=timezone.utc)
    return (zoned - _EPOCH) // timedelta(microseconds=1)
