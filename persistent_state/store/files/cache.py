"""Copies on a local disk of files that a log names and a far store keeps: named by their content, verified, bounded.

All processes of a user share the folder, so a copy may go at any time; what is mapped stays usable. Whatever fails here
only means that the store is asked.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
import tempfile
import threading
from contextlib import suppress

import pyarrow as pa

from persistent_state.store.files.base import Stamp
from persistent_state.store.files.local import stamp_of

BOUND = 4 * 2**30
"""Bytes that the copies may take, if that is less than half of what the disk has left for them."""

SLACK = 64 * 2**20
"""Bytes that a process may add before it looks whether the bound holds."""

MOST_VERIFIED = 50_000
"""The most verified copies that a process remembers."""

_verified: set[tuple[str, Stamp]] = set()
_added = SLACK
_lock = threading.Lock()


def find(checksum: str, anew: bool = False) -> pa.Buffer | None:
    """Return the bytes with this SHA-256, mapped, or None if there is no copy. A damaged copy is deleted.

    A copy is verified once per process, and again if it was written to. With `anew` it is always verified.
    """
    copy = opened(checksum)
    if copy is None:
        return None
    data, stamp = copy
    if anew or (checksum, stamp) not in _verified:
        if hashlib.sha256(data).hexdigest() != checksum:
            drop(checksum)
            return None
        if len(_verified) >= MOST_VERIFIED:
            _verified.clear()
        _verified.add((checksum, stamp))
    return data


def opened(checksum: str) -> tuple[pa.Buffer, Stamp] | None:
    """Return the copy that was kept by this name, mapped but not verified, and its stamp; None if there is no copy."""
    place = _place(checksum)
    if place is None:
        return None
    try:
        # Before the bytes are: of a copy that is written to meanwhile the stamp is an old one, so it is verified again.
        found = os.stat(place)
        data = pa.memory_map(place).read_buffer()
        # The newest use is the time of its change, which is not when it was written to.
        os.utime(place, ns=(found.st_atime_ns, found.st_mtime_ns))
    except OSError:
        return None
    return data, stamp_of(found)


def drop(checksum: str) -> None:
    """Delete a copy that is damaged."""
    place = _place(checksum)
    if place is not None:
        with suppress(OSError):
            os.unlink(place)


def keep(checksum: str, data: bytes | pa.Buffer) -> None:
    """Keep a copy of bytes with this SHA-256, or of a file with blocks by its checksum, for all processes of the user."""
    global _added
    place = _place(checksum)
    if place is None or len(data) > BOUND // 4:
        return
    temporary = os.path.join(os.path.dirname(place), secrets.token_hex(8))
    try:
        with open(temporary, "xb") as file:
            file.write(data)
        os.rename(temporary, place)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
    with _lock:
        _added += len(data)
        full = _added >= SLACK
        if full:
            _added = 0
    if full:
        _evict(os.path.dirname(place))


def _place(checksum: str) -> str | None:
    """Return the path of a copy; None if no private folder is possible."""
    folder = os.path.join(tempfile.gettempdir(), f"persistent-state-{os.getuid()}")
    try:
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found = os.lstat(folder)
    except OSError:
        return None
    # Others may write where temporary files are: what they have prepared, or could look into, is not used.
    private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return os.path.join(folder, checksum) if private and re.fullmatch("[0-9a-f]{64}", checksum) else None


def _evict(folder: str) -> None:
    """Remove what was used longest ago until the bound holds."""
    found = []
    with suppress(OSError), os.scandir(folder) as copies:
        for copy in copies:
            # Another process may evict at the same time.
            with suppress(OSError):
                known = copy.stat()
                found.append((known.st_ctime_ns, known.st_size, copy.path))
    held = sum(size for _, size, _ in found)
    with suppress(OSError):
        disk = os.statvfs(folder)
        bound = min(BOUND, (held + disk.f_bavail * disk.f_frsize) // 2)
        for _, size, place in sorted(found):
            if held <= bound:
                break
            with suppress(FileNotFoundError):
                os.unlink(place)
            held -= size
