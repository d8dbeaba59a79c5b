"""Processes that end with the tests that started them, in whatever way these end."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

# Its input is a pipe that closes with the last who holds it, which is the process of the tests.
GUARDED = 'exec 3<&0; (cat <&3 >/dev/null; kill -9 -$$) & exec "$@" </dev/null 3<&-'


def start_guarded(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a program as the head of a process session, which is killed when the tests are."""
    return subprocess.Popen(
        ["sh", "-c", GUARDED, "sh", *command], stdin=subprocess.PIPE, start_new_session=True, **options
    )
