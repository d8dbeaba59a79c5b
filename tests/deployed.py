"""What the files of `deploy/` say, for the tests that check them and those that run what they run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[1] / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
FILES = [file for file in sorted(DEPLOY.rglob("*")) if file.is_file() and file.suffix != ".pyc"]
"""All that is deployed. Python leaves compiled files beside it."""


def pod_of(manifest: Path) -> Mapping[str, Any]:
    """The pod that a manifest starts, be it by a job of its schedule."""
    spec = yaml.safe_load(manifest.read_text("utf-8"))["spec"]
    while "containers" not in spec:
        spec = spec["jobTemplate" if "jobTemplate" in spec else "template"]["spec"]
    return spec


def container_of(manifest: Path) -> Mapping[str, Any]:
    """The only container of the pod."""
    (container,) = pod_of(manifest)["containers"]
    return container


def commented_args(manifest: Path) -> list[str]:
    """The other arguments that a manifest has, as a comment."""
    (comment,) = re.findall(r"^ +# args:\n(?: +#   .*\n)+", manifest.read_text("utf-8"), re.MULTILINE)
    return [str(arg) for arg in yaml.safe_load(re.sub(r"^( +)# ", r"\1", comment, flags=re.MULTILINE))["args"]]


def seconds_of(probe: Mapping[str, Any]) -> int:
    """The time after which a probe that fails has failed."""
    return int(probe.get("periodSeconds", 10)) * int(probe.get("failureThreshold", 3))


def instructions(dockerfile: Path = DEPLOY / "Dockerfile") -> Iterator[tuple[str, str]]:
    """The instructions of a Dockerfile with their arguments, lines that go on put together."""
    text = re.sub(r"^#.*\n", "", dockerfile.read_text("utf-8"), flags=re.MULTILINE)
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, arguments = line.partition(" ")
            yield name, " ".join(arguments.split())


def replaced(args: Sequence[str], **options: str) -> list[str]:
    """Arguments in which some options have another value."""
    names = {f"--{name}": value for name, value in options.items()}
    return [
        f"{name}={names.get(name, value)}" if equals else arg
        for arg in args
        for name, equals, value in [arg.partition("=")]
    ]
