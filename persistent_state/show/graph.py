"""Draw the graph of an application's tasks, of its summary: as text, as SVG, and in the language of Graphviz."""

from __future__ import annotations

import json
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from xml.sax.saxutils import escape

from persistent_state.formatting import counted, pairs, shortened, show_clock, table
from persistent_state.protocol.holding import READ
from persistent_state.show.text import heads, outputs
from persistent_state.show.words import clock_of, feeder, reads

KEPT = ("application", "clock", "next", "waits_for")
"""The parts of a summary that a graph shows of the application."""

KEPT_OF_TASK = ("task", "active", "flow", "clock", "inputs", "outputs")
"""The parts of a summary that a graph shows of a task."""


@dataclass
class Node:
    """A box of a drawing: a source or a task. Lengths are pixels; `x` and `y` are where it begins."""

    title: str
    lines: list[str] = field(default_factory=list)
    kind: str = "task"
    layer: int = 0
    x: float = 0
    y: float = 0
    wide: float = 0
    high: float = 0


@dataclass(frozen=True)
class Edge:
    """An arrow of a drawing between two boxes, by their names."""

    tail: str
    head: str
    label: str


def graph(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a summary of an application that its graph shows, the tasks in the order in which they are fed."""
    tasks = {task["task"]: task for task in summary["tasks"]}
    depths = _depths(tasks)
    order = sorted(tasks, key=lambda name: (depths[name], name))
    return {
        **{name: summary[name] for name in KEPT},
        "tasks": [{part: tasks[name][part] for part in KEPT_OF_TASK} for name in order],
    }


def as_text(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a graph: a table whose tasks stand below those that feed them."""
    tasks = {task["task"]: task for task in summary["tasks"]}
    depths, fed = _depths(tasks), defaultdict[str, list[str]](list)
    for name, task in tasks.items():
        # Below the deepest of those that feed it, it is there once.
        above = max(_upstream(tasks, task), key=lambda other: depths[other], default="")
        fed[above].append(name)

    def rows(above: str, depth: int) -> Iterator[Sequence[str]]:
        for name in fed[above]:
            yield "  " * depth + name, reads(tasks[name]["inputs"]), clock_of(tasks[name])
            yield from rows(name, depth + 1)

    yield from pairs(heads(summary))
    yield ""
    yield from table(("task", "reads", "clock"), [*rows("", 0)])
    yield from outputs(summary["tasks"])


def as_dot(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a graph in the language of Graphviz."""
    nodes, edges = _drawing(summary)
    yield f"digraph {_quoted(summary['application'])} {{"
    yield f"  rankdir=LR; label={_quoted(chr(10).join(_head(summary)))}; labelloc=t; node [shape=box, style=rounded];"
    for name, node in nodes.items():
        shape = {"source": ", shape=cylinder, style=solid", "left": ", style=dashed", "held": ", color=orange"}.get(
            node.kind, ""
        )
        text = "\n".join([node.title, *node.lines])
        yield f"  {_quoted(name)} [label={_quoted(text)}{shape}];"
    for edge in edges:
        label = f" [label={_quoted(edge.label)}]" if edge.label else ""
        yield f"  {_quoted(edge.tail)} -> {_quoted(edge.head)}{label};"
    yield "}"


def as_svg(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a graph as a picture that suits light and dark pages."""
    nodes, edges = _drawing(summary)
    paths, tall = _laid_out(nodes, edges)
    # A long sentence, as of a channel's name, is broken where the picture ends.
    most = max([720.0, *(node.x + node.wide for node in nodes.values())])
    above = [part for text in _head(summary) for part in textwrap.wrap(text, int(most / LETTER))]
    top = 2 * MARGIN + LINE * len(above)
    sides = (*(node.x + node.wide for node in nodes.values()), *(MARGIN + LETTER * len(text) for text in above))
    wide = max(sides) + MARGIN
    high = top + tall + MARGIN
    label = escape(f"The graph of the tasks of {summary['application']}", {'"': "&quot;"})
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high:.0f}" width="{wide:.0f}" role="img" '
        f'aria-label="{label}" font-family="sans-serif" font-size="13">'
    )
    yield f"<style>{STYLE}</style>"
    yield (
        '<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="point" d="M0 0 10 5 0 10z"/></marker></defs>'
    )
    yield f'<rect class="page" width="{wide:.0f}" height="{high:.0f}"/>'
    for place, text in enumerate(above):
        weight = "" if place else ' class="title"'
        yield f'<text{weight} x="{MARGIN}" y="{MARGIN + LINE * place + 8}">{escape(text)}</text>'
    yield f'<g transform="translate(0 {top})">'
    for path in paths:
        yield f'<path class="edge" marker-end="url(#arrow)" d="{path}"/>'
    for edge, path in zip(edges, paths, strict=True):
        if edge.label:
            # Before the point of its arrow, where no other arrow's label is.
            x, y = map(float, path.rsplit(" ", 1)[1].split(","))
            yield f'<text class="label" text-anchor="end" x="{x - 12:.0f}" y="{y - 4:.0f}">{escape(edge.label)}</text>'
    for node in nodes.values():
        round_ = 18 if node.kind == "source" else 6
        yield (
            f'<rect class="{node.kind}" x="{node.x:.0f}" y="{node.y:.0f}" width="{node.wide:.0f}" height="{node.high:.0f}" '
            f'rx="{round_}"/>'
        )
        for place, text in enumerate([node.title, *node.lines]):
            y = node.y + PAD + LINE * place + 10
            kind = "small" if place else "title"
            yield f'<text class="{kind}" x="{node.x + PAD:.0f}" y="{y:.0f}">{escape(text)}</text>'
    yield "</g>"
    yield "</svg>"


MARGIN, PAD, LINE, LETTER = 20, 12, 18, 7.4
"""Pixels: around the picture and within a box, from line to line, and for a letter."""

GAP, BETWEEN, LANE = 26, 130, 14
"""Pixels: between boxes of one layer, between layers, and for an edge that goes past a layer."""

STYLE = (
    ".page{fill:#fff}text{fill:#212121}.title{font-weight:bold}.small,.label{font-size:12px}.label{fill:#546e7a;stroke:#fff;stroke-width:4;paint-order:stroke}"
    ".edge{stroke:#546e7a;stroke-width:1.6;fill:none}.point{fill:#546e7a}.source{fill:#eceff1;stroke:#90a4ae}"
    ".task{fill:#e0f2f1;stroke:#4db6ac}.held{fill:#fff3e0;stroke:#fb8c00;stroke-width:2}"
    ".left{fill:none;stroke:#90a4ae;stroke-dasharray:5 4}"
    "@media(prefers-color-scheme:dark){.page{fill:#1b1f23}text{fill:#eceff1}.label{fill:#b0bec5;stroke:#1b1f23}.edge{stroke:#90a4ae}"
    ".point{fill:#90a4ae}.source{fill:#30383d;stroke:#78909c}.task{fill:#12403c;stroke:#4db6ac}"
    ".held{fill:#4a3312;stroke:#ffa726}.left{stroke:#78909c}}"
)


def _drawing(summary: Mapping[str, Any]) -> tuple[dict[str, Node], list[Edge]]:
    """Return the boxes of a drawing by name, and its edges, in the order of the tasks."""
    tasks = {task["task"]: task for task in summary["tasks"]}
    held = summary["waits_for"]
    # To wait for new messages is no trouble.
    slow = held["task"] if held is not None and held["why"] != READ else None
    nodes: dict[str, Node] = {}
    edges: list[Edge] = []
    depths = _depths(tasks)
    for name, task in tasks.items():
        for input, fed in task["inputs"].items():
            if (found := feeder(fed)) is not None:
                kind, other, often = found
                edges.append(Edge(other, name, (f"{input}: " if input else "") + kind + often))
                continue
            # The tasks of a flow read one source.
            source = f"source {task['flow']} {input}"
            title, channels = f"source {input}" if input else "source", fed["channels"]
            nodes[source] = Node(title, [counted(channels, "channel")], "source")
            edges.append(Edge(source, name, ""))
        lines = [clock_of(task, show_clock)]
        for each in task["outputs"]:
            behind = f": {show_clock(each['clock'])}, {each['behind']:,} behind" if each["behind"] else ""
            lines.append(f"→ {shortened(each['output'])}{behind}")
        kind = "left" if not task["active"] else "held" if name == slow else "task"
        nodes[name] = Node(name, lines, kind, depths[name])
    return nodes, [edge for edge in edges if edge.tail in nodes]


def _depths(tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Return, by the name of a task, the number of the most tasks one after the other that end with it."""
    depths: dict[str, int] = {}

    def depth(name: str) -> int:
        if name not in depths:
            depths[name] = 1 + max(map(depth, _upstream(tasks, tasks[name])), default=0)
        return depths[name]

    return {name: depth(name) for name in tasks}


def _upstream(tasks: Mapping[str, Any], task: Mapping[str, Any]) -> list[str]:
    """Return the names of the tasks that feed a task."""
    return [found[1] for fed in task["inputs"].values() if (found := feeder(fed)) is not None and found[1] in tasks]


def _laid_out(nodes: Mapping[str, Node], edges: Sequence[Edge]) -> tuple[list[str], float]:
    """Place the boxes in layers from left to right. Return the path of each edge, and how high all is."""
    for node in nodes.values():
        node.wide = LETTER * max([1.15 * len(node.title), *map(len, node.lines)]) + 2 * PAD
        node.high = LINE * (1 + len(node.lines)) + 2 * PAD - 6
    fed = Counter(edge.head for edge in edges)
    for name, count in fed.items():
        nodes[name].high = max(nodes[name].high, LINE * (count + 1))
    # An edge that goes past a layer has a lane there: an empty box.
    boxes, chains = dict(nodes), list[list[str]]()
    for number, edge in enumerate(edges):
        chain = [edge.tail]
        for layer in range(nodes[edge.tail].layer + 1, nodes[edge.head].layer):
            chain.append(f"lane {number} {layer}")
            boxes[chain[-1]] = Node("", kind="lane", layer=layer, high=LANE)
        chains.append([*chain, edge.head])
    layers: dict[int, list[str]] = defaultdict(list)
    for name, node in boxes.items():
        layers[node.layer].append(name)
    above: dict[str, list[str]] = defaultdict(list)
    below: dict[str, list[str]] = defaultdict(list)
    for chain in chains:
        for tail, head in pairwise(chain):
            above[head].append(tail)
            below[tail].append(head)
    x = float(MARGIN)
    for layer in sorted(layers):
        wide = max(boxes[name].wide for name in layers[layer])
        for name in layers[layer]:
            boxes[name].x = x
            if boxes[name].kind == "lane":
                boxes[name].wide = wide
        x += wide + BETWEEN
    _stack(boxes, layers)
    # A few rounds in each direction: each box is drawn to the middle of those that it is connected with.
    for number in range(8):
        beside = above if number % 2 == 0 else below
        for layer in sorted(layers, reverse=number % 2 == 1):
            layers[layer].sort(key=lambda name: _middle(boxes, beside[name] or [name]))
        _stack(boxes, layers)
    _settle(boxes, layers, above, below)
    # Arrows that come to one box come to places of their own, in the order in which they come.
    coming: dict[str, list[int]] = defaultdict(list)
    for number in sorted(range(len(chains)), key=lambda number: _middle(boxes, [chains[number][-2]])):
        coming[chains[number][-1]].append(number)
    ends = {
        number: boxes[head].y + boxes[head].high * (place + 1) / (len(numbers) + 1)
        for head, numbers in coming.items()
        for place, number in enumerate(numbers)
    }
    paths = [_path([boxes[name] for name in chain], ends[number]) for number, chain in enumerate(chains)]
    return paths, max((box.y + box.high for box in boxes.values()), default=0)


def _stack(boxes: Mapping[str, Node], layers: Mapping[int, Sequence[str]]) -> None:
    """Place the boxes of each layer below one another, all layers around one middle."""
    tall = {layer: sum(boxes[name].high + GAP for name in names) - GAP for layer, names in layers.items()}
    most = max(tall.values(), default=0)
    for layer, names in layers.items():
        y = (most - tall[layer]) / 2
        for name in names:
            boxes[name].y = y
            y += boxes[name].high + GAP


def _settle(
    boxes: Mapping[str, Node],
    layers: Mapping[int, Sequence[str]],
    above: Mapping[str, Sequence[str]],
    below: Mapping[str, Sequence[str]],
) -> None:
    """Draw boxes level with those that they are connected with, as far as their order in the layer allows."""
    for number in range(6):
        beside = below if number % 2 == 0 else above
        for layer in sorted(layers, reverse=number % 2 == 0):
            floor = float("-inf")
            for name in layers[layer]:
                box = boxes[name]
                wanted = _middle(boxes, beside[name]) - box.high / 2 if beside.get(name) else box.y
                box.y = max(floor, wanted)
                floor = box.y + box.high + GAP
    least = min((box.y for box in boxes.values()), default=0)
    for box in boxes.values():
        box.y -= least


def _middle(boxes: Mapping[str, Node], names: Sequence[str]) -> float:
    return sum(boxes[name].y + boxes[name].high / 2 for name in names) / len(names)


def _path(chain: Sequence[Node], end: float) -> str:
    """Return the curve from the right side of the first box through the lanes to the left side of the last, at `end`."""
    tail, *lanes, head = chain
    points = [(tail.x + tail.wide, tail.y + tail.high / 2)]
    for lane in lanes:
        points += [(lane.x, lane.y + LANE / 2), (lane.x + lane.wide, lane.y + LANE / 2)]
    points.append((head.x, end))
    x, y = points[0]
    path = f"M{x:.0f},{y:.0f}"
    for place, (to, down) in enumerate(points[1:]):
        half = (x + to) / 2
        path += (
            f" L{to:.0f},{down:.0f}" if place % 2 else f" C{half:.0f},{y:.0f} {half:.0f},{down:.0f} {to:.0f},{down:.0f}"
        )
        x, y = to, down
    return path


def _head(summary: Mapping[str, Any]) -> list[str]:
    """Return the lines above a drawing."""
    name, *others = heads(summary).items()
    return [name[1], *(f"{what} {value}" for what, value in others)]


def _quoted(text: str) -> str:
    """Return a text as a string of Graphviz."""
    return json.dumps(text, ensure_ascii=False)
