"""A real Prometheus asks endpoints of runs: the alerts of deploy/ fire for those that are ill, and for no other."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.broker import free_ports
from persistent_state.metrics.of_run import Work
from persistent_state.run.monitor import Monitor
from tests import core
from tests.processes import start_guarded
from tests.two_tasks import TwoTasks
from tests.waiting import PATIENCE, until

ALERTS = Path(__file__).parents[2] / "deploy/prometheus/alerts.yml"
ADDRESS = "127.0.0.1"
FASTER = 60
"""How many times shorter than in deploy/ all times are here: a minute is a second.

A run that is well must be asked several times within the shortest of them, also on a busy machine.
"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed; .ci/run installs it"),
]


class Run:
    """A run without Spark: a store that is written by hand, and its endpoint. The task A has an output, which takes nothing."""

    def __init__(self, outputs: tuple[str, ...] = ("sink",)) -> None:
        self.world, self._seconds = TwoTasks(outputs), 5.0
        self.monitor = Monitor(self.world.log, {}, (ADDRESS, 0))
        self.monitor.serve()
        self.move()

    def move(self, count: int = 1) -> None:
        """Move the global clock on by so many intervals."""
        for _ in range(count):
            self._seconds += 10
            self.play("A", self._seconds)
            self.play("B", self._seconds)

    def play(self, task: str, seconds: float) -> None:
        """Commit a micro-batch with one message."""
        self.world.read(task, {"x": seconds}, "x", now=int(time.time() * 1e6))

    def damage(self) -> None:
        """Spoil the newest entry of the log."""
        path = self.world.log.path(core.newest(self.world.log).number)
        self.world.log.files.delete(path)
        self.world.log.files.create(path, b"{}")


def shortened(rules: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rules with all times shorter: how long something is so, the ranges of expressions, and the seconds in them."""

    def seconds(minutes: str) -> str:
        return f"{int(minutes) * 60_000 // FASTER}ms"

    def faster(rule: Mapping[str, Any]) -> Mapping[str, Any]:
        expr = re.sub(r"\b(\d+)m\b", lambda found: seconds(found[1]), rule["expr"])
        expr = re.sub(r"(?<=timestamp_seconds > )\d+", lambda found: str(int(found[0]) / FASTER), expr)
        return {**rule, "expr": expr, **({"for": seconds(rule["for"][:-1])} if "for" in rule else {})}

    return {"groups": [{**group, "rules": [*map(faster, group["rules"])]} for group in rules["groups"]]}


@pytest.fixture
def runs() -> Iterator[Mapping[str, Run]]:
    """Runs by what they will be."""
    runs = {"well": Run(()), "silent": Run(), "busy": Run(()), "damaged": Run(()), "ended": Run(())}
    yield runs
    for run in runs.values():
        run.monitor.close()


class Prometheus:
    """A server that scrapes endpoints by names of jobs once a second, with rules."""

    def __init__(self, folder: Path, urls: Mapping[str, str | None], rules: Mapping[str, Any]) -> None:
        (port,) = free_ports(1)
        self.url, self._log = f"http://{ADDRESS}:{port}", folder / "log"
        jobs = [
            {"job_name": name, "static_configs": [{"targets": [str(url).removeprefix("http://")]}]}
            for name, url in urls.items()
        ]
        often = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config = {"global": often, "scrape_configs": jobs, "rule_files": ["rules.yml"]}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        (folder / "rules.yml").write_text(yaml.safe_dump(rules))
        flags = {
            "config.file": folder / "prometheus.yml",
            "storage.tsdb.path": folder / "data",
            "web.listen-address": f"{ADDRESS}:{port}",
        }
        with self._log.open("wb") as log:
            command = ["prometheus", *(f"--{name}={value}" for name, value in flags.items())]
            self._process = start_guarded(command, stdout=log, stderr=subprocess.STDOUT)

    def ask(self, path: str) -> Any:
        """The data of an answer of its API; it may have yet to begin."""

        def answered() -> Any:
            with (
                suppress(urllib.error.URLError, ConnectionError),
                urllib.request.urlopen(f"{self.url}/api/v1/{path}", timeout=PATIENCE) as answer,
            ):
                return json.load(answer)

        return until(answered, "an answer", self._process, self._log)["data"]

    def firing(self) -> Sequence[Mapping[str, Any]]:
        """The alerts that are firing."""
        return [alert for alert in self.ask("alerts")["alerts"] if alert["state"] == "firing"]

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        self._process.wait(PATIENCE)


def test_each_alert_fires_for_the_run_that_is_ill_and_none_for_the_one_that_is_well(
    runs: Mapping[str, Run], tmp_path: Path
) -> None:
    rules = yaml.safe_load(ALERTS.read_text("utf-8"))
    well, silent, busy, damaged, ended = runs.values()
    silent.move(11)
    damaged.damage()
    expected = {
        ("silent", "PersistentStateStands"),
        ("silent", "PersistentStateSilent"),
        ("silent", "PersistentStateOutputBehind"),
        ("busy", "PersistentStateStands"),
        ("busy", "PersistentStateRestarts"),
        ("busy", "PersistentStateLateOrBadRows"),
        ("busy", "PersistentStateUnreadGrows"),
        ("damaged", "PersistentStateUnreadable"),
        ("ended", "PersistentStateGone"),
    }
    assert {alert for _, alert in expected} == {
        rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule
    }
    found, unread = dict[tuple[str, str], str](), 0
    with ExitStack() as ends:
        prometheus = Prometheus(tmp_path, {name: run.monitor.url for name, run in runs.items()}, shortened(rules))
        ends.callback(prometheus.close)
        deadline = time.monotonic() + PATIENCE
        while expected - found.keys():
            assert time.monotonic() < deadline, expected - found.keys()
            well.move()
            # Late: of what is below the clock nothing counts.
            busy.play("A", 1)
            busy.monitor.restart()
            unread += 100_000
            for run, count in ((well, 0), (busy, unread)):
                run.monitor.hear(Work("A", False, 1, 0, 0.1, 0.1, ("",), {"orders-0": count}))
            targets = prometheus.ask("targets")["activeTargets"]
            if any(one["labels"]["job"] == "ended" and one["health"] == "up" for one in targets):
                ended.monitor.close()
            for alert in prometheus.firing():
                labels = alert["labels"]
                assert labels["application"] == "app"
                found[labels["job"], labels["alertname"]] = alert["annotations"]["summary"]
            time.sleep(0.25)
        up = {one["labels"]["job"]: one["health"] for one in prometheus.ask("targets")["activeTargets"]}
    assert up == {**dict.fromkeys(runs, "up"), "ended": "down"}
    assert found.keys() == expected
    assert found["silent", "PersistentStateStands"] == "The global clock of app has not moved for 15 minutes."
    assert found["silent", "PersistentStateOutputBehind"] == (
        "The sink sink of A lacks more than 10 clocks, or half an hour of event time."
    )
    assert found["busy", "PersistentStateLateOrBadRows"] == "Rows of A did not count: late."
    assert found["busy", "PersistentStateUnreadGrows"] == "A does not keep up with partition orders-0."
