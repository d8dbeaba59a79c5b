"""Metrics of a store: parsers read them, they are right and bounded, and one damaged application does not hide the others."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from persistent_state.cli.commands import main
from persistent_state.event_time.channels import Channel
from persistent_state.metrics import measures, of_store
from persistent_state.metrics.exposition import as_text, registry_of
from persistent_state.metrics.measures import Measure, Sample
from persistent_state.protocol import deliver, rewind
from persistent_state.store.files import open_files
from persistent_state.store.flow_state import LateRows, SourceState
from persistent_state.store.named_files import Pages, Stored
from tests import core
from tests.two_tasks import TwoTasks

ROOT = Path(__file__).parents[2]
STORE = str(ROOT / "tests/fixtures/store-v1")


def values(samples: Iterable[Sample], of: Measure) -> dict[tuple[str, ...], float]:
    """The values of a metric by its labels, without the application."""
    return {sample.labels[1:]: sample.value for sample in samples if sample.of == of}


def parsed(text: str) -> dict[str, Any]:
    """The families of OpenMetrics text by name."""
    assert text.endswith("# EOF\n")
    return {family.name: family for family in text_string_to_metric_families(text)}


def measured(world: TwoTasks) -> list[Sample]:
    """The samples of an application that can be read."""
    samples, error = of_store.of_application(world.log)
    assert error is None
    return samples


def test_the_kept_store_is_measured_as_show_describes_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", STORE]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    families = parsed(out)
    assert main(["show", STORE, "app", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)

    def one(name: str) -> float:
        (sample,) = families[f"persistent_state_{name}"].samples
        return float(sample.value)

    assert (one("global_clock_seconds"), one("log_entries"), one("starts")) == (220e-6, 16, 2)
    assert (one("store_bytes"), one("readable")) == (shown["bytes"], 1)
    for task in shown["tasks"]:
        of_task = {
            family.name: sample.value
            for family in families.values()
            for sample in family.samples
            if sample.labels.get("task") == task["task"]
        }
        assert of_task["persistent_state_task_bytes"] == task["bytes"]
        assert of_task["persistent_state_task_files"] == task["files"]
        assert of_task["persistent_state_task_clock_seconds"] == task["clock"] / 1e6


def test_json_has_the_same_samples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", STORE]) == 0
    families = parsed(capsys.readouterr().out)
    assert main(["metrics", STORE, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    in_text = {(s.name, *sorted(s.labels.items()), s.value) for family in families.values() for s in family.samples}
    assert {(s["name"], *sorted(s["labels"].items()), s["value"]) for s in told} == in_text


def test_every_sample_is_of_a_metric_that_is_listed() -> None:
    samples, _ = of_store.of_store(open_files(STORE))
    assert {sample.of for sample in samples} <= set(measures.OF_STORE)
    assert len({measure.name for measure in measures.OF_STORE}) == len(measures.OF_STORE)


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed; .ci/run installs it")
def test_promtool_has_nothing_against_it() -> None:
    samples, _ = of_store.of_store(open_files(STORE))
    text = prometheus_client.generate_latest(registry_of(lambda: samples))
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_clocks_and_lags_are_in_seconds() -> None:
    world = TwoTasks()
    assert values(measured(world), measures.GLOBAL_CLOCK) == {}
    assert values(measured(world), measures.CLOCK) == {}
    assert values(measured(world), measures.INTERVAL) == {(): 10}
    for task in world.plans:
        world.read(task, {"x": 25}, "x")
    assert values(measured(world), measures.GLOBAL_CLOCK) == {(): 20}
    assert values(measured(world), measures.OUTPUT_BEHIND) == {("A", "sink"): 1}
    assert values(measured(world), measures.OUTPUT_LAG) == {}
    deliver.record(world.log, core.newest(world.log).epoch, "A", "sink", 20_000_000, now=0)
    for task in world.plans:
        world.read(task, {"x": 45.5}, "x", now=3_000_000)
    assert values(measured(world), measures.OUTPUT_CLOCK) == {("A", "sink"): 20}
    assert values(measured(world), measures.OUTPUT_LAG) == {("A", "sink"): 20}
    assert values(measured(world), measures.OUTPUT_BEHIND) == {("A", "sink"): 1}
    assert values(measured(world), measures.CLOCK) == {("A",): 40, ("B",): 40}
    assert values(measured(world), measures.NEWEST) == {("A", ""): 45.5, ("B", ""): 45.5}
    assert values(measured(world), measures.POSITION) == {("A", "", ""): 2, ("B", "", ""): 2}
    assert values(measured(world), measures.WRITTEN) == {(): 3}


def test_a_rewind_is_seen_until_the_sinks_have_followed() -> None:
    world = TwoTasks()
    for task in "AB":
        for at in (15, 25, 35):
            world.read(task, {"x": at}, "x")
    deliver.record(world.log, core.newest(world.log).epoch, "A", "sink", 30_000_000, 0)
    kept = [*core.newest(world.log).kept]
    assert values(measured(world), measures.TIMELINE) == {(): 0}
    assert values(measured(world), measures.KEPT) == {(): len(kept)}
    assert values(measured(world), measures.OLDEST_KEPT) == {(): kept[0] / 1e6}
    assert values(measured(world), measures.OUTPUT_OWES) == {}
    planned = core.plan_rewind(world.log, 20_000_000, rewind.RETRACT)
    entry = rewind.rewind(world.log, planned, writer="somebody", now=0)
    assert values(measured(world), measures.TIMELINE) == {(): entry.timeline} != {(): 0}
    assert values(measured(world), measures.KEPT) == {(): len(kept) - 1}
    assert values(measured(world), measures.OUTPUT_OWES) == {("A", "sink"): 1}


def test_a_task_that_is_left_out_has_no_lag() -> None:
    world = TwoTasks()
    for task in world.plans:
        world.read(task, {"x": 25}, "x")
    world.start("B")
    assert values(measured(world), measures.ACTIVE) == {("A", "A"): 0, ("B", "B"): 1}
    assert values(measured(world), measures.OUTPUT_BEHIND) == {}
    assert values(measured(world), measures.POSITION).keys() == {("B", "", "")}


def test_slow_channels_are_named_with_the_reason() -> None:
    world = TwoTasks()
    world.read("A", {"x": 90, "y": 57}, "xy")
    world.read("B", {"x": 200}, "x")
    assert values(measured(world), measures.WAITS_FOR) == {("A", "", "y", "behind"): 1}
    world.start()
    everyone = "xyz"
    world.read("A", {"x": 95}, everyone, now=0)
    world.read("A", {"x": 100}, everyone, now=7_000_000)
    slow = values(measured(world), measures.SLOW_LAG)
    # The start cut it back to the global clock.
    assert slow == {("A", "", "y", "silent"): 100 - 50, ("A", "", "x", "behind"): 0}
    assert values(measured(world), measures.SLOW_SILENCE) == {
        ("A", "", "z", "never heard"): 7,
        ("A", "", "y", "silent"): 7,
        ("A", "", "x", "behind"): 0,
    }
    assert values(measured(world), measures.WAITS_FOR) == {("A", "", "z", "never heard"): 1}
    states = {
        state: count for (flow, _, state), count in values(measured(world), measures.CHANNELS).items() if flow == "A"
    }
    assert states == {"delivering": 1, "silent": 1, "never heard": 1, "ended": 0}


def test_of_many_channels_and_reasons_only_some_are_named() -> None:
    world = TwoTasks()
    world.read("A", {"x": 25}, "x")
    entry = core.newest(world.log)
    channels = {f"c{number}": Channel(100_000_000 + number, 0) for number in range(1000)}
    flow = replace(
        entry.flows["A"],
        inputs={"": SourceState(channels)},
        late_rows=LateRows(settled_counts={f"reason {number}": 1000 - number for number in range(100)}),
    )
    samples = [*of_store.of_entry("app", entry.with_flow("A", flow))]
    assert list(values(samples, measures.SLOW_LAG)) == [
        ("A", "", f"c{number}", "behind") for number in range(of_store.MOST_CHANNELS)
    ]
    reasons = values(samples, measures.LATE_AND_BAD)
    assert len(reasons) == of_store.MOST_REASONS + 1
    assert sum(reasons.values()) == sum(range(901, 1001))
    assert reasons["A", "reason 0"] == 1000
    assert reasons["A", "others"] == sum(range(901, 981))


def test_labels_with_quotes_and_ends_of_lines_are_read_back() -> None:
    name = 'a "b"\\\n{c="d"} ä'
    (sample,) = parsed(as_text([measures.CLOCK.at(1.5, "app", name)]))["persistent_state_task_clock_seconds"].samples
    assert (sample.labels["task"], sample.value) == (name, 1.5)


def test_a_damaged_application_is_told_and_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    for name in ("app", "other"):
        shutil.copytree(f"{STORE}/app", store / name)
    (store / "app/log/00000000000000000016.json").write_text("{}")
    assert main(["metrics", str(store)]) == 0
    out, err = capsys.readouterr()
    families = parsed(out)
    readable = {s.labels["application"]: s.value for s in families["persistent_state_readable"].samples}
    assert readable == {"app": 0, "other": 1}
    assert [s.labels["application"] for s in families["persistent_state_global_clock_seconds"].samples] == ["other"]
    assert err.startswith("persistent-state: log entry app/log/00000000000000000016.json")
    assert err.count("\n") == 1


def test_a_list_that_is_lost_hides_the_sizes_only() -> None:
    world = TwoTasks()
    world.read("A", {"x": 25}, "x")
    entry = core.newest(world.log)
    gone = Pages((Stored("app/lists/gone", 10, "0" * 64),))
    flow = replace(entry.flows["A"], late_rows=LateRows(settled=gone))
    world.log.append(entry.follower(0, flows={**entry.flows, "A": flow}))
    samples, error = of_store.of_application(world.log)
    assert "app/lists/gone" in str(error)
    assert values(samples, measures.READABLE) == {(): 0}
    assert values(samples, measures.STORE_BYTES) == {}
    assert values(samples, measures.ENTRIES) == {(): entry.number + 1}


def test_a_store_without_applications_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", str(tmp_path)]) == 2
    assert "there is no application in store=" in capsys.readouterr().err


def test_a_missing_package_is_one_sentence_and_json_needs_none() -> None:
    program = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from persistent_state.cli.commands import main; sys.exit(main(sys.argv[1:]))"
    )
    run = subprocess.run([sys.executable, "-c", program, "metrics", STORE], capture_output=True, text=True, cwd=ROOT)
    assert (run.returncode, run.stdout) == (2, "")
    assert "pip install 'persistent-state[metrics]'" in run.stderr
    run = subprocess.run(
        [sys.executable, "-c", program, "metrics", STORE, "--json"], capture_output=True, text=True, cwd=ROOT
    )
    assert run.returncode == 0
