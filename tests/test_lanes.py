"""Each lane has a command and a job, and a test is in the lane of what it needs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml

from tests import durations, soak
from tests.deployed import instructions
from tests.lanes import FAST, LANES, OTHERS, lane_of, left_out

ROOT = Path(__file__).parents[1]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))


@pytest.mark.parametrize(
    ("marks", "fixtures", "lane"),
    [
        ((), ("tmp_path", "monkeypatch"), FAST),
        ((), ("spark", "tmp_path"), "spark"),
        ((), ("launch", "spark", "broker"), "kafka"),
        ((), ("spark", "servers"), "stores"),
        (("soak", "kills"), ("spark", "servers"), "kills"),
        (("stores", "spark"), ("spark",), "stores"),
        (("fast",), ("launch",), FAST),
    ],
)
def test_a_test_is_in_the_lane_of_its_nearest_mark_or_else_of_what_it_asks_for(
    marks: Sequence[str], fixtures: Sequence[str], lane: str
) -> None:
    assert lane_of(marks, fixtures) == lane


def test_the_end_of_a_lane_says_what_did_not_run_and_how_to_run_it() -> None:
    assert left_out([*LANES]) == []
    assert left_out([FAST, *OTHERS[2:]]) == [
        "Not run here:",
        "  make test-spark  needs a JVM",
        "  make test-kills  needs a JVM and PostgreSQL: drivers, workers and JVMs are killed",
        "  make test-all    runs all of them",
        "  make soak        repeats more, for hours, and lets worlds look for every planted bug",
    ]


def test_each_lane_has_a_target_of_make_and_a_job() -> None:
    (lanes,) = re.findall(r"^LANES := (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert tuple(lanes.split()) == OTHERS
    targets = WORKFLOW["jobs"]["check"]["strategy"]["matrix"]["target"]
    assert targets == ["lint docs", "test", *(f"test-{lane}" for lane in OTHERS)]


def test_each_python_that_is_promised_runs_the_fast_lane() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    promised = {*re.findall(r":: (3\.\d+)$", config["metadata"]["classifiers"], re.MULTILINE)}
    promised |= {*re.findall(r"python:(3\.\d+)", " ".join(words for name, words in instructions() if name == "FROM"))}
    assert {*WORKFLOW["jobs"]["pythons"]["strategy"]["matrix"]["python"]} == promised


REPORT = """<testsuites><testsuite name="pytest">
<testcase classname="tests.test_a" name="test_one[x]" time="1.25">
<properties><property name="lane" value="fast" /></properties></testcase>
<testcase classname="tests.spark.test_b" name="test_two" time="61.5">
<properties><property name="lane" value="spark" /></properties></testcase>
</testsuite></testsuites>
"""


def test_durations_are_shown_by_lane_and_the_longest_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fast.xml").write_text(REPORT)
    assert durations.main([str(tmp_path / "fast.xml"), "--longest", "1"]) == 0
    assert capsys.readouterr().out == (
        "| lane | tests | seconds |\n| --- | ---: | ---: |\n| spark | 1 | 62 |\n| fast | 1 | 1 |\n\n"
        "| seconds | test |\n| ---: | --- |\n| 62 | `tests.spark.test_b::test_two` |\n"
    )


def test_one_commit_in_so_many_runs_a_test_that_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "IS_SOAK", False)
    runs = []
    for number in range(300):
        monkeypatch.setattr(soak, "commit", lambda number=number: f"commit {number}")
        runs.append(soak.is_run("a test", 3))
        assert soak.is_run("a test", 1)
    assert 60 < sum(runs) < 140
    monkeypatch.setattr(soak, "IS_SOAK", True)
    assert soak.is_run("a test", 10**9)
