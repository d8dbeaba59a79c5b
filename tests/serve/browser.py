"""Debian's Chromium, without a window, and a store that is served to it; and the pictures of the page for the docs.

    python -m tests.serve.browser

makes docs/serve-light.png, docs/serve-dark.png and docs/serve-phone.png.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import uvicorn
from PIL import Image
from starlette.types import ASGIApp, Receive, Scope, Send

from persistent_state import open_store
from persistent_state.protocol import deliver, naming
from persistent_state.serve.app import application
from persistent_state.store.files import open_files
from tests import core
from tests.two_tasks import TwoTasks
from tests.waiting import PATIENCE, until

DOCS = Path(__file__).parents[2] / "docs"

DARK = ("--blink-settings=preferredColorScheme=0",)
"""What makes Chromium ask for dark pages."""

PICTURES = {
    "serve-light": ((1100, 1500), ()),
    "serve-dark": ((1100, 1500), DARK),
    "serve-phone": ((500, 1100), ()),
}
"""The pictures of the docs: the size of the window, and Chromium's options. Chromium's narrowest window has 500 pixels."""


def chromium(profile: Path, url: str, *options: str) -> str:
    """What Chromium prints when it has looked at a page for some seconds of its own time."""
    command = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={profile}",
    ]
    done = subprocess.run(
        [*command, "--virtual-time-budget=13000", *options, url], capture_output=True, check=True, timeout=PATIENCE
    )
    return done.stdout.decode()


def picture(profile: Path, url: str, to: Path, size: tuple[int, int], options: Sequence[str] = ()) -> Image.Image:
    """A picture of a page in a window of this size."""
    chromium(profile, url, *options, f"--window-size={size[0]},{size[1]}", f"--screenshot={to}")
    return Image.open(to).convert("RGB")


@contextmanager
def served(
    store: str,
    on_page: Callable[[str], None] = lambda query: None,
    now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
) -> Iterator[str]:
    """The URL of a store that is served on loopback. `on_page` gets the query of each page, after it was given to somebody."""
    # The browser's time is shorter than ours: no look serves a second one.
    app = application(open_store(store), "127.0.0.1", None, count(0.0, 2.0).__next__, now_us)
    config = uvicorn.Config(watched(app, on_page), port=0, log_level="error", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started, "the server", thread.is_alive)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()


def watched(app: ASGIApp, on_page: Callable[[str], None]) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await app(scope, receive, send)
        if scope["path"] == "/":
            on_page(scope["query_string"].decode())

    return answer


def play(store: str) -> int:
    """An application for pictures: it runs, is started again, and has a channel that is silent. The time of its last entry."""
    minute, begun = 60_000_000, 1_793_600_000_000_000
    world = TwoTasks(("dashboard", "warehouse"), open_files(store), now=begun - minute)
    for number in range(30):
        if number == 22:
            world.start(now=begun + number * minute - 5_000_000)
        for task in "AB":
            at = (begun + number * minute) / 1e6 - (15 if task == "B" else 0)
            channels = "ab" if number < 22 else "a"
            words = {f"{word}": at + place for place, word in enumerate(channels)}
            world.read(task, words, "ab", now=begun + number * minute + (number * 7 % 5) * 1_000_000)
        if number in (9, 15, 20):
            world.read(
                "A", {"a": begun / 1e6 - 600, "b": begun / 1e6 - 900}, "ab", now=begun + number * minute + 30_000_000
            )
        entry = core.newest(world.log)
        if number > 3 and number < 24:
            due = deliver.due(entry, "A", "dashboard")
            if due is not None:
                deliver.record(world.log, entry.epoch, "A", "dashboard", entry.clock, now=entry.time)
        if number == 12:
            naming.keep(world.log, entry.clock, "before the release", entry.time)
    return core.newest(world.log).time


def main() -> None:
    """Make the pictures of the docs."""
    with tempfile.TemporaryDirectory() as folder:
        store = "memory://shops"
        last = play(store)
        with served(store, now_us=lambda: last + 4_000_000) as url:
            for name, (size, options) in PICTURES.items():
                made = picture(Path(folder) / "profile", url, Path(folder) / f"{name}.png", size, options)
                made.quantize(64).save(DOCS / f"{name}.png", optimize=True)
                print(name, (DOCS / f"{name}.png").stat().st_size)


if __name__ == "__main__":
    if shutil.which("chromium") is None:
        sys.exit("chromium is not installed; apt-get install chromium.")
    main()
