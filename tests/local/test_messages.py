"""Blobs go from a part to a shard, whole, and the driver between the two never has them."""

from __future__ import annotations

import os
import resource
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from persistent_state.batch.packets import Blob, Content, Report, Sender
from persistent_state.errors import StateError
from persistent_state.local.messages import BlobPlace, Channel, Message, new_file
from persistent_state.local.pool import Calls, Pool
from tests.sentences import problem

ROWS = pa.table({"k": [*range(1000)], "v": pa.array(["a", None] * 500)})


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(2, [])
    yield made
    made.close()


def blob(part: int, shard: int) -> Blob:
    return Blob(Sender("flow", 1, 0, "plan", part, 2), shard, {"t": Content((ROWS.slice(part, 10), ROWS))})


def send(part: int) -> list[Blob | Report]:
    return [blob(part, 0), blob(part, 1), Report(Sender("flow", 1, 0, "plan", part, 2))]


def is_right(item: tuple[int, Sequence[Blob], str]) -> bool:
    """Return whether the blobs are those that all parts have sent to a shard. The worker dies if the place is not there."""
    shard, blobs, place = item
    if not Path(place).exists():
        Path(place).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    assert all(isinstance(each, Blob) for each in blobs)
    return [*blobs] == [blob(part, shard) for part in range(len(blobs))]


def open_files(_: object = None) -> int:
    return len(os.listdir("/proc/self/fd"))


def test_blobs_go_to_their_shards_past_the_driver_also_if_a_worker_dies_of_them_first(
    pool: Pool, tmp_path: Path
) -> None:
    calls = Calls(pool)
    sent = calls.each(send, range(3))
    assert all(isinstance(of_part[-1], Report) for of_part in sent)
    blobs: list[Any] = [each for of_part in sent for each in of_part[:-1]]
    assert all(isinstance(each, BlobPlace) for each in blobs)
    items = [(shard, [each for each in blobs if each.shard == shard], f"{tmp_path}/{shard}") for shard in range(2)]
    assert calls.each(is_right, items) == [True, True]
    assert calls.each(is_right, items) == [True, True], "a shard may be merged again"


def test_no_file_stays_open_after_a_turn(pool: Pool, tmp_path: Path) -> None:
    calls = Calls(pool)

    def turn() -> set[int]:
        sent: list[Any] = [each for of_part in calls.each(send, range(4)) for each in of_part[:-1]]
        blobs = [each for each in sent if each.shard == 0]
        calls.each(is_right, [(0, blobs, str(tmp_path))])
        del sent, blobs
        return {open_files(), *calls.each(open_files, range(8))}

    known = turn()
    for _ in range(3):
        assert turn() <= known


def test_blobs_go_through_a_file_where_the_system_has_none_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str) -> int:
        raise PermissionError(name)

    monkeypatch.setattr(os, "memfd_create", refused)
    file = new_file()
    ends = [file.write(blob(part, 0)) for part in range(2)]
    assert [Blob.from_bytes(file.content[start:end]) for start, end in ends] == [blob(0, 0), blob(1, 0)]


def test_a_process_that_may_open_no_other_file_says_so_and_takes_the_next_message() -> None:
    here, there = (Channel(each.detach()) for each in socket.socketpair())
    file = new_file()
    start, end = file.write(blob(0, 0))
    here.send(Message(b"first", [file, file]))
    here.send(Message(b"second", [file]))
    newest = os.open(os.devnull, os.O_RDONLY)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (newest + 1, hard))
        said = problem(there.receive, StateError)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(newest)
    assert said == f"process={os.getpid()} has too many open files; raise the limit (ulimit -n), then start again."
    message = there.receive()
    assert message.data == b"second"
    assert Blob.from_bytes(message.files[0].content[start:end]) == blob(0, 0)
    here.close()
    there.close()


def test_a_call_may_take_longer_than_sockets_of_the_program_wait() -> None:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(0.05)
    try:
        pool = Pool(1, [])
    finally:
        socket.setdefaulttimeout(before)
    try:
        assert Calls(pool).each(lambda seconds: time.sleep(seconds), [0.3]) == [None]
    finally:
        pool.close()
