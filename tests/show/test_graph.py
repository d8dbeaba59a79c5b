"""The graph of an application's tasks: each is there, below what feeds it, in every form."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as xml
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from persistent_state.cli.commands import main
from persistent_state.show import graph
from tests.protocol.test_graph import Graph

ROWS = [(5, 1, 10), (65, 2, 20)]


@pytest.fixture
def store() -> str:
    """The address of a store in which one of the derived tasks has taken its step."""
    world = Graph()
    world.start()
    for task in ("PerShop", "Amounts", "PerSlot"):
        world.play(task, ROWS)
    world.turn("PerRegion")
    return world.files.url


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments]) == 0
    return capsys.readouterr().out


def test_show_tells_what_reads_what_and_what_the_clock_waits_for(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = run(capsys, "show", store, "app")
    assert re.search(r"^clock +none yet$", text, re.M)
    assert re.search(r"^next clock +1970-01-01T00:00:00.000060Z \(60\)$", text, re.M)
    assert re.search(
        r"^waits for +task=(PerTotal|Slots), which has yet to step to 1970-01-01T00:00:00.000060Z$", text, re.M
    )
    assert re.search(r"^PerShop +a source +shop ", text, re.M)
    assert re.search(r"^PerRegion +changes of PerShop +region .* 1970-01-01T00:00:00.000060Z \(60\)", text, re.M)
    assert re.search(r"^Slots +closed windows of PerSlot +shop .* none yet ", text, re.M)
    # Only tasks that a source feeds have channels.
    assert set(re.findall(r"^(\w+) +\d+ +\d+ +\d+ +\(unnamed\)", text, re.M)) == {"PerShop", "Amounts", "PerSlot"}
    told = json.loads(run(capsys, "show", store, "app", "--json"))
    assert (told["clock"], told["next"]) == (None, 60)
    assert told["waits_for"]["why"] == "step"
    assert told["waits_for"]["at"] == 60
    assert {task["task"]: task["inputs"] for task in told["tasks"]} == {
        **{name: {"": {"channels": 1}} for name in ("PerShop", "Amounts", "PerSlot")},
        "PerRegion": {"": {"changes": "PerShop"}},
        "PerTotal": {"": {"changes": "PerRegion"}},
        "Slots": {"": {"closed windows": "PerSlot"}},
    }


def test_the_graph_is_a_tree_in_text_and_complete_in_json(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "graph", store)
    places = {line.strip().split()[0]: len(line) - len(line.lstrip()) for line in text.splitlines() if line.strip()}
    names = ("PerShop", "PerRegion", "PerTotal", "PerSlot", "Slots", "Amounts")
    assert [places[name] for name in names] == [0, 2, 4, 0, 2, 0]
    assert text.index("PerShop ") < text.index("  PerRegion ") < text.index("    PerTotal ") < text.index("\nPerSlot ")
    assert "\ntask     output  delivered up to  clocks behind\n" in text
    told = json.loads(run(capsys, "graph", store, "app", "--json"))
    shown = json.loads(run(capsys, "show", store, "app", "--json"))
    by_name = {task["task"]: task for task in shown["tasks"]}
    assert told.items() >= {name: shown[name] for name in ("application", "clock", "next", "waits_for")}.items()
    for task in told["tasks"]:
        assert task.items() <= by_name[task["task"]].items()
    assert len(told["tasks"]) == 6


def test_the_picture_has_each_task_once_and_no_box_upon_another(
    store: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run(capsys, "graph", store, "--svg", str(tmp_path / "graph.svg"))
    drawn = xml.parse(tmp_path / "graph.svg").getroot()
    texts = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    for name in ("PerShop", "Amounts", "PerSlot", "PerRegion", "PerTotal", "Slots"):
        assert texts.count(name) == 1
    assert (texts.count("source"), texts.count("changes"), texts.count("closed windows")) == (3, 2, 1)
    boxes = [
        tuple(float(box.attrib[name]) for name in ("x", "y", "width", "height"))
        for box in drawn.iter("{http://www.w3.org/2000/svg}rect")
        if box.attrib["class"] != "page"
    ]
    assert len(boxes) == 9
    assert not any(overlap(one, other) for one, other in combinations(boxes, 2))
    assert [box.attrib["class"] for box in drawn.iter("{http://www.w3.org/2000/svg}rect")].count("held") == 1
    wide, high = map(float, drawn.attrib["viewBox"].split()[2:])
    assert all(x + w <= wide and y + h <= high for x, y, w, h in boxes)


def overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(one[i] < other[i] + other[i + 2] and other[i] < one[i] + one[i + 2] for i in (0, 1))


def test_the_graph_is_written_for_graphviz(store: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run(capsys, "graph", store, "--dot", str(tmp_path / "graph.dot"))
    lines = (tmp_path / "graph.dot").read_text("utf-8").splitlines()
    assert (lines[0], lines[-1]) == ('digraph "app" {', "}")
    assert '  "PerShop" -> "PerRegion" [label="changes"];' in lines
    assert '  "source PerShop " -> "PerShop";' in lines


def test_inputs_are_named_and_edges_pass_beside_boxes() -> None:
    told = summary(
        Orders={"": {"channels": 2}},
        Rates={"": {"changes": "Orders"}},
        Converted={
            "orders": {"channels": 3},
            "rates": {"changes": "Rates", "every": 60_000_000},
            "<all>": {"changes": "Orders"},
        },
    )
    assert "Converted  orders: a source, rates: changes of Rates every 1 minute, <all>: changes of Orders" in "\n".join(
        graph.as_text(told)
    )
    drawn = xml.fromstring("\n".join(graph.as_svg(told)))
    texts = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"source orders", "rates: changes every 1 minute", "<all>: changes"} <= set(texts)
    paths = [path.attrib["d"] for path in drawn.iter("{http://www.w3.org/2000/svg}path") if "marker-end" in path.attrib]
    # Past the layers between there is a lane.
    assert sum(" L" in path for path in paths) == 2
    assert len({path.rsplit(" ", 1)[1] for path in paths}) == len(paths) == 5


def test_an_application_without_tasks_and_one_that_was_left_out() -> None:
    xml.fromstring("\n".join(graph.as_svg(summary())))
    told = summary(Orders={"": {"channels": 1}})
    told["tasks"][0]["active"] = False
    assert "none yet, left out" in "\n".join(graph.as_text(told))
    assert 'class="left"' in "\n".join(graph.as_svg(told))
    assert "style=dashed" in "\n".join(graph.as_dot(told))


def test_the_application_is_named_if_there_are_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persistent_state.cli.commands.find_applications", lambda _: ["a", "b"])
    assert main(["graph", str(tmp_path)]) == 2
    assert "has the applications a, b; name one." in capsys.readouterr().err
    monkeypatch.setattr("persistent_state.cli.commands.find_applications", lambda _: [])
    assert main(["graph", str(tmp_path)]) == 2
    assert "there is no application in store=" in capsys.readouterr().err


def summary(**tasks: dict[str, Any]) -> dict[str, Any]:
    """The graph of tasks with these inputs."""
    return graph.graph(
        {
            "application": "app",
            "clock": None,
            "next": None,
            "waits_for": None,
            "tasks": [
                {"task": name, "active": True, "flow": name, "clock": None, "inputs": inputs, "outputs": []}
                for name, inputs in tasks.items()
            ],
        }
    )
