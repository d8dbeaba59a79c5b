"""The waits of a flow on this machine, by a clock that the test moves on."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path

import pytest

from persistent_state.event_time.durations import positive
from persistent_state.local.pace import (
    FAR_SECONDS,
    GATHERED_SECONDS,
    LOOK_SECONDS,
    NEAR_SECONDS,
    NEWS_SECONDS,
    Pace,
    seconds_between,
)
from persistent_state.sources.rate import RateSource
from persistent_state.store.files import Files, MemoryFiles, open_files
from persistent_state.store.files.remote import RemoteFiles
from tests.waiting import PATIENCE


class Stopping(threading.Event):
    """An event that is never set, of which a wait moves a clock on."""

    now = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now += timeout
        return False


class Far(MemoryFiles):
    """A store behind a network."""

    near = False


def test_commits_are_rarer_on_a_store_behind_a_network_unless_there_is_a_trigger(tmp_path: Path) -> None:
    assert not RemoteFiles.near
    for files, seconds in ((open_files(str(tmp_path)), NEAR_SECONDS), (Far("memory://"), FAR_SECONDS)):
        assert seconds_between(files, None) == seconds
        for trigger in ("10 milliseconds", "1 minute"):
            assert seconds_between(files, positive("trigger", trigger)) == positive("trigger", trigger) / 1e6
    assert FAR_SECONDS >= 1


@pytest.mark.parametrize(
    ("trigger", "is_behind", "took", "waits"),
    [
        (None, False, 0.3, FAR_SECONDS - 0.3),
        (None, False, 3.0, 0.0),
        (None, True, 0.3, 0.0),
        (5_000_000, False, 0.3, 4.7),
        (5_000_000, True, 0.3, 4.7),
        (0, False, 0.3, 0.0),
    ],
)
def test_a_micro_batch_waits_for_the_one_before_it_but_not_where_there_is_a_backlog(
    trigger: int | None, is_behind: bool, took: float, waits: float
) -> None:
    stopping = Stopping()
    pace = Pace(Far("memory://"), trigger, stopping, lambda: stopping.now)
    begun, stopping.now = 100.0, 100.0 + took
    pace.await_next(begun, is_behind)
    assert stopping.now == pytest.approx(100.0 + took + waits)


@pytest.mark.parametrize(
    ("files", "seconds"), [(MemoryFiles("memory://"), LOOK_SECONDS), (Far("memory://"), FAR_SECONDS)]
)
def test_an_idle_source_is_looked_at_as_often_as_the_store_allows(files: Files, seconds: float) -> None:
    stopping = Stopping()
    for trigger in (None, 60_000_000):
        before = stopping.now
        Pace(files, trigger, stopping, lambda: stopping.now).await_look(RateSource(1))
        assert stopping.now == pytest.approx(before + seconds)


def test_what_is_gathered_is_committed_as_rarely_as_without(tmp_path: Path) -> None:
    stopping, commits = Stopping(), list[float]()
    pace = Pace(open_files(str(tmp_path)), None, stopping, lambda: stopping.now, gathers=True)
    assert not pace.is_commit_due
    for _ in range(100):
        begun = stopping.now
        pace.has_gathered()
        if pace.is_commit_due:
            pace.has_committed()
            commits.append(begun)
        pace.await_next(begun, is_behind=False)
    assert stopping.now == pytest.approx(100 * GATHERED_SECONDS)
    assert commits[0] == 0, "the first is not waited for"
    between = [after - before for before, after in itertools.pairwise(commits)]
    assert len(between) >= 8
    assert between == pytest.approx([NEAR_SECONDS + GATHERED_SECONDS / 2] * len(between), abs=0.51 * GATHERED_SECONDS)


def test_a_commit_does_not_wait_for_news(tmp_path: Path) -> None:
    stopping = Stopping()
    pace = Pace(open_files(str(tmp_path)), None, stopping, lambda: stopping.now, gathers=True)
    pace.has_committed()
    pace.await_look(RateSource(1))
    assert stopping.now == pytest.approx(LOOK_SECONDS)
    pace.has_committed()
    pace.has_gathered()
    pace.await_look(RateSource(1))
    assert stopping.now == pytest.approx(LOOK_SECONDS + NEAR_SECONDS)
    assert pace.is_commit_due


@pytest.mark.parametrize(("news", "waits"), [(0.0, NEWS_SECONDS), (NEWS_SECONDS / 2, NEWS_SECONDS), (0.05, 0.05)])
def test_a_source_that_has_news_is_looked_at_soon_and_never_without_a_pause(news: float, waits: float) -> None:
    class Hears(RateSource):
        def await_news(self, seconds: float, stopping: threading.Event) -> None:
            assert seconds == FAR_SECONDS
            stopping.wait(news)

    stopping = Stopping()
    Pace(Far("memory://"), None, stopping, lambda: stopping.now).await_look(Hears(1))
    assert stopping.now == pytest.approx(waits)


def test_a_stop_ends_all_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    stopping = threading.Event()
    pace = Pace(Far("memory://"), 3_600_000_000, stopping)
    monkeypatch.setattr("persistent_state.local.pace.FAR_SECONDS", 3600.0)
    idle = Pace(Far("memory://"), None, stopping)
    waits = [
        threading.Thread(target=pace.await_next, args=(time.monotonic(), False)),
        threading.Thread(target=idle.await_look, args=(RateSource(1),)),
    ]
    for each in waits:
        each.start()
    stopping.set()
    for each in waits:
        each.join(PATIENCE)
        assert not each.is_alive()
