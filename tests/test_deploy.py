"""What is deployed names what there is, its times and statuses are those of the command, and each alert is explained.

tests/spark/test_run.py runs what the manifest runs.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from persistent_state import Application, InvalidInputError
from persistent_state.cli import run, stop_signals
from persistent_state.cli.commands import TOKEN, _parser
from persistent_state.engine.spark import archives
from tests.deployed import (
    DEPLOY,
    FILES,
    MANIFESTS,
    commented_args,
    container_of,
    instructions,
    pod_of,
    replaced,
    seconds_of,
)
from tests.metrics.test_server import ask
from tests.processes import start_guarded
from tests.store.servers import free_port
from tests.waiting import PATIENCE, until

ROOT = DEPLOY.parent
PAGE = (ROOT / "docs/operating.md").read_text("utf-8")
METRICS = (ROOT / "docs/metrics.md").read_text("utf-8")
DRIVER, SCHEDULE, ONCE, SERVE = (
    DEPLOY / "kubernetes" / name for name in ("driver.yaml", "every-five-minutes.yaml", "once.yaml", "serve.yaml")
)


def of_dockerfile(name: str) -> list[str]:
    return [arguments for instruction, arguments in instructions() if instruction == name]


def setup() -> ConfigParser:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config


def test_the_image_is_made_of_what_there_is() -> None:
    assert {name for name, _ in instructions()} <= {
        "FROM", "WORKDIR", "COPY", "RUN", "ARG", "ENV", "USER", "ENTRYPOINT", "CMD"
    }  # fmt: skip
    images = {image.partition(" ")[0] for image in of_dockerfile("FROM")}
    (version,) = [re.fullmatch(r"python:3\.(\d+)-slim-bookworm", image) for image in images]
    assert version is not None
    assert f"Python :: 3.{version[1]}\n" in setup()["metadata"]["classifiers"] + "\n"
    sources = [
        source
        for copied in of_dockerfile("COPY")
        if not copied.startswith("--from=")
        for source in shlex.split(copied)[:-1]
    ]
    assert all((ROOT / source).exists() for source in sources), sources
    # All that is copied, and nothing else, reaches the build.
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    assert ignore[1] == "*"
    assert {line[1:] for line in ignore if line.startswith("!")} == {*sources}
    # What setuptools is told to pack is copied.
    packages = {name.rstrip("*") for name in setup()["options.packages.find"]["include"].split()}
    assert packages <= {*sources}
    assert {"README.md", setup()["metadata"]["license_files"]} <= {*sources}


def test_the_image_installs_extras_that_there_are_and_runs_the_command_as_an_own_user() -> None:
    arguments = dict(argument.split("=") for argument in of_dockerfile("ARG"))
    assert {*arguments} == {"EXTRAS", "PYSPARK"}
    wanted = arguments["EXTRAS"]
    assert {*wanted.split(",")} <= {*setup()["options.extras_require"]}
    assert {"s3", "metrics", "serve"} <= {*wanted.split(",")}
    # The version of Spark is one that this project tries, and no later build has another.
    assert any("[$EXTRAS]" in line and '"pyspark==$PYSPARK"' in line for line in of_dockerfile("RUN"))
    assert f"`pyspark=={arguments['PYSPARK']}`" in PAGE
    needed = re.search(r"^pyspark(.*)$", setup()["options"]["install_requires"], re.MULTILINE)
    assert needed is not None
    assert arguments["PYSPARK"] in SpecifierSet(needed[1])
    installed = next(line for line in of_dockerfile("RUN") if "apt-get" in line)
    (java,) = re.findall(r"openjdk-(\d+)-jre-headless", installed)
    assert int(java) >= 17
    assert f"python -m {archives.__name__}" in of_dockerfile("RUN")
    (entry,) = map(json.loads, of_dockerfile("ENTRYPOINT"))
    (script,) = [
        line.partition(" = ")[0] for line in setup()["options.entry_points"]["console_scripts"].split("\n") if line
    ]
    assert entry == ["tini", "--", script]
    assert "tini" in installed
    (shown,) = map(json.loads, of_dockerfile("CMD"))
    with pytest.raises(SystemExit) as ended:
        _parser().parse_args(shown)
    assert ended.value.code == 0
    (user,) = of_dockerfile("USER")
    assert any(f"useradd --uid 1000 --create-home {user} " in line for line in of_dockerfile("RUN"))


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest.stem)
def test_a_manifest_runs_the_image_by_arguments_that_the_command_takes(manifest: Path) -> None:
    pod, container = pod_of(manifest), container_of(manifest)
    built = re.search(r"docker build -f deploy/Dockerfile -t (\S+) \.", (DEPLOY / "Dockerfile").read_text("utf-8"))
    assert built is not None
    assert container["image"] == built[1]
    _parser().parse_args(container["args"])
    assert pod["securityContext"]["runAsUser"] == 1000
    # Only the scratch space of the image may be written to.
    (mount,), (volume,) = container["volumeMounts"], pod["volumes"]
    assert mount["name"] == volume["name"]
    (variables,) = of_dockerfile("ENV")
    assert {f"TMPDIR={mount['mountPath']}", f"SPARK_LOCAL_DIRS={mount['mountPath']}"} <= {*variables.split()}


@pytest.mark.parametrize("manifest", [DRIVER, SCHEDULE, ONCE], ids=lambda manifest: manifest.stem)
def test_a_manifest_gives_the_application_of_the_image_its_settings(
    manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container, told = container_of(manifest), run_of(manifest)
    # The module is in the folder of the image.
    module, _, name = told.application.partition(":")
    assert of_dockerfile("COPY")[-1] == f"deploy/{module}.py ./"
    variables = {each["name"]: each["value"] for each in container["env"]}
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    app = runpy.run_path(str(DEPLOY / f"{module}.py"))[name]()
    assert isinstance(app, Application)
    assert app.store == variables["STORE"] == "s3://bucket/apps"
    assert app.name == "word-count"
    monkeypatch.setenv("NAME", "word-count-next")
    assert runpy.run_path(str(DEPLOY / f"{module}.py"))[name]().name == "word-count-next"


def check_resources(args: Sequence[str], resources: Mapping[str, Any]) -> None:
    """Check that Spark takes the cores that are requested, and half of the memory for its JVM."""
    (cores,) = [found[1] for arg in args if (found := re.fullmatch(r"--master=local\[(\d+)\]", arg))]
    (heap,) = [found[1] for arg in args if (found := re.fullmatch(r"--conf=spark\.driver\.memory=(\d+)g", arg))]
    assert resources["requests"] == {"cpu": cores, "memory": f"{2 * int(heap)}Gi"}
    assert resources["limits"] == {"memory": f"{2 * int(heap)}Gi"}


@pytest.mark.parametrize("manifest", [DRIVER, SCHEDULE], ids=lambda manifest: manifest.stem)
def test_spark_takes_the_cores_and_the_memory_of_the_pod_whatever_the_node_has(manifest: Path) -> None:
    container = container_of(manifest)
    check_resources(container["args"], container["resources"])


def test_the_rebuild_that_is_a_comment_of_what_is_done_once_takes_the_settings_of_the_driver() -> None:
    args = commented_args(ONCE)
    told = _parser().parse_args(args)
    assert (told.rebuild, told.follow) == (["WordCount"], False)
    check_resources(args, container_of(ONCE)["resources"])
    assert {*args[4:]} <= {*container_of(DRIVER)["args"]}
    assert f"`{' '.join(args[:3])}` and more" in PAGE


def test_one_driver_has_time_to_end_and_probes_where_it_answers() -> None:
    spec: dict[str, Any] = yaml.safe_load(DRIVER.read_text("utf-8"))["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    pod, container = pod_of(DRIVER), container_of(DRIVER)
    assert pod["restartPolicy"] == "Always"
    assert pod["terminationGracePeriodSeconds"] >= stop_signals.SECONDS + 10
    told = run_of(DRIVER)
    assert told.follow
    (port,) = container["ports"]
    host, _, number = str(told.metrics).rpartition(":")
    assert (host, int(number)) == ("0.0.0.0", port["containerPort"])
    paths = {name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {probe["port"] for probe in paths.values()} == {port["name"]}
    assert [paths[name]["path"] for name in paths] == ["/health", "/health", "/ready"]
    # A start on a busy machine takes some ten seconds, and a pause of the JVM is no death.
    assert seconds_of(container["startupProbe"]) >= 300
    assert seconds_of(container["livenessProbe"]) >= 60
    scraped = spec["template"]["metadata"]["annotations"]
    assert (scraped["prometheus.io/port"], scraped["prometheus.io/path"]) == (number, "/metrics")


def run_of(manifest: Path) -> Any:
    return _parser().parse_args(container_of(manifest)["args"])


def test_what_serves_the_store_answers_its_probes_without_the_token_and_metrics_with_it(tmp_path: Path) -> None:
    spec: dict[str, Any] = yaml.safe_load(SERVE.read_text("utf-8"))["spec"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    container, port = container_of(SERVE), free_port()
    assert container["env"] == [each for each in container_of(DRIVER)["env"] if each["name"] == "STORE"]
    secret = container["envFrom"][-1]["secretRef"]["name"]
    (told,) = re.findall(rf"kubectl create secret generic {secret} --from-literal=(\w+)=", PAGE)
    assert told == TOKEN
    (named,) = container["ports"]
    assert f"--port={named['containerPort']}" in container["args"]
    args = replaced(container["args"], host="127.0.0.1", port=str(port))
    args[args.index("$(STORE)")] = str(ROOT / "tests/fixtures/store-v1")
    command = [sys.executable, "-m", "persistent_state", *args]
    with (tmp_path / "log").open("wb") as log:
        process = start_guarded(command, stdout=log, stderr=log, env={**os.environ, TOKEN: "secret"})
    try:
        log_file = tmp_path / "log"
        until(lambda: b'"url"' in log_file.read_bytes(), "the server", process, log_file)
        for probe in ("livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] == named["name"]
            assert ask(f"http://127.0.0.1:{port}{container[probe]['httpGet']['path']}")[0] == 200
        assert ask(f"http://127.0.0.1:{port}/metrics")[0] == 401
        known = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Authorization": "Bearer secret"})
        with urllib.request.urlopen(known, timeout=PATIENCE) as answer:
            assert b"persistent_state_readable{" in answer.read()
    finally:
        process.terminate()
        process.wait(PATIENCE)


def blocks() -> list[dict[str, Any]]:
    """The YAML of the page on metrics."""
    return [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", METRICS, re.MULTILINE | re.DOTALL)]


def test_prometheus_asks_the_pods_and_ports_that_there_are() -> None:
    config, monitor = blocks()
    pod = yaml.safe_load(DRIVER.read_text("utf-8"))["spec"]["template"]["metadata"]
    (port,) = container_of(DRIVER)["ports"]
    assert monitor["spec"]["selector"]["matchLabels"] == pod["labels"]
    assert monitor["spec"]["podMetricsEndpoints"] == [{"port": port["name"]}]
    machine, kubernetes, store = config["scrape_configs"]
    assert kubernetes["relabel_configs"][0]["regex"] == f"{pod['labels']['app']};{port['name']}"
    told = _parser().parse_args(shlex.split(unit_of("word-count.service")["Service"]["ExecStart"])[1:])
    assert machine["static_configs"] == [{"targets": [f"localhost:{told.metrics}"]}]
    (served,), secret = container_of(SERVE)["ports"], container_of(SERVE)["envFrom"][-1]["secretRef"]["name"]
    assert store["static_configs"] == [{"targets": [f"localhost:{served['containerPort']}"]}]
    (label, name, given) = re.findall(
        r"label is `app: (.*?)`, the endpoint `port: (\w+)` with `(.*?)`", METRICS, re.DOTALL
    )[0]
    assert yaml.safe_load(given) == {"authorization": {"credentials": {"name": secret, "key": TOKEN}}}
    assert (label, name) == (yaml.safe_load(SERVE.read_text("utf-8"))["metadata"]["labels"]["app"], served["name"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed; .ci/run installs it")
def test_prometheus_takes_the_configuration_of_the_page(tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "prometheus/alerts.yml", tmp_path)
    (tmp_path / "store-token").write_text("secret")
    for job in (config := blocks()[0])["scrape_configs"]:
        if "authorization" in job:
            job["authorization"]["credentials_file"] = "store-token"
        # Debian's Prometheus is built without it.
        job.pop("kubernetes_sd_configs", None)
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    checked = subprocess.run(
        ["promtool", "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr


def test_a_schedule_never_runs_twice_at_a_time_and_obeys_the_exit_statuses() -> None:
    spec: dict[str, Any] = yaml.safe_load(SCHEDULE.read_text("utf-8"))["spec"]
    assert (spec["schedule"], spec["concurrencyPolicy"]) == ("*/5 * * * *", "Forbid")
    told = run_of(SCHEDULE)
    assert not told.follow
    assert not told.drain
    job, pod = spec["jobTemplate"]["spec"], pod_of(SCHEDULE)
    ((rule,),) = [job["podFailurePolicy"]["rules"]]
    codes = rule["onExitCodes"]
    assert (rule["action"], codes["containerName"]) == ("FailJob", container_of(SCHEDULE)["name"])
    assert (codes["operator"], codes["values"]) == ("In", [run.MEND, run.FENCED])
    # A run that hangs ends, one that reads for hours does not.
    assert 3600 < job["activeDeadlineSeconds"] < 24 * 3600
    # The policy asks for it.
    assert pod["restartPolicy"] == "Never"
    assert pod["terminationGracePeriodSeconds"] >= stop_signals.SECONDS + 10


def test_what_is_done_once_changes_nothing_unless_it_is_changed() -> None:
    told = run_of(ONCE)
    assert told.dry_run
    assert not told.yes
    spec = yaml.safe_load(ONCE.read_text("utf-8"))["spec"]
    assert (spec["backoffLimit"], pod_of(ONCE)["restartPolicy"]) == (0, "Never")


def unit_of(name: str) -> ConfigParser:
    unit = ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "systemd" / name)
    return unit


TIMED = "word-count-every-five-minutes"


def test_the_timer_of_systemd_starts_a_run_that_ends_and_never_beside_the_driver() -> None:
    timer, service = unit_of(f"{TIMED}.timer"), unit_of(f"{TIMED}.service")["Service"]
    # The service that it starts has its name.
    assert dict(timer["Timer"]) == {"OnCalendar": "*:0/5"}
    assert timer["Unit"]["Conflicts"] == "word-count.service"
    assert service["Type"] == "oneshot"
    # With it the timer would never start it again.
    assert "RemainAfterExit" not in service
    hours, unit = service["TimeoutStartSec"][:-1], service["TimeoutStartSec"][-1]
    deadline = yaml.safe_load(SCHEDULE.read_text("utf-8"))["spec"]["jobTemplate"]["spec"]["activeDeadlineSeconds"]
    assert (int(hours) * 3600, unit) == (deadline, "h")
    same = ("User", "WorkingDirectory", "EnvironmentFile", "KillMode", "TimeoutStopSec")
    driver = unit_of("word-count.service")["Service"]
    assert [service[name] for name in same] == [driver[name] for name in same]
    program, *arguments = shlex.split(service["ExecStart"])
    assert program == shlex.split(driver["ExecStart"])[0]
    told = _parser().parse_args(arguments)
    assert (arguments[0], told.follow, told.drain) == ("run", False, False)


def test_the_line_for_cron_loads_the_settings_waits_for_no_other_run_and_tells_of_a_failure(tmp_path: Path) -> None:
    (line,) = re.findall(r"^\*/5 \* \* \* \* +(.*)$", PAGE, re.MULTILINE)
    driver, place = unit_of("word-count.service")["Service"], tmp_path / "it is here"
    program = Path(shlex.split(driver["ExecStart"])[0]).relative_to(driver["WorkingDirectory"])
    stub, settings = place / program, tmp_path / "settings"
    stub.parent.mkdir(parents=True)
    stub.write_text('#!/bin/sh\necho "$EVENTS $@"\nif [ $STATUS = hang ]; then exec sleep 3600; fi\nexit $STATUS\n')
    stub.chmod(0o755)
    line = line.replace(driver["EnvironmentFile"], str(settings))
    line = line.replace(f"cd {driver['WorkingDirectory']} ", f"cd {shlex.quote(str(place))} ")

    def ran(status: str) -> str:
        settings.write_text(f"EVENTS=s3://bucket/events\nSTATUS={status}\n")
        run_now = line.replace("6h", "1s") if status == "hang" else line
        done = subprocess.run(["env", "-i", "sh", "-c", run_now], capture_output=True, text=True, timeout=PATIENCE)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert ran("0") == ""
    (told,) = (place / "run.log").read_text().splitlines()
    events, *arguments = told.split()
    assert events == "s3://bucket/events"
    assert not _parser().parse_args(arguments).follow
    # Cron mails what is printed.
    assert "exit status 2" in ran("2")
    assert "exit status 124" in ran("hang")
    runs = (place / "run.log").read_text()
    with (place / "run.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert ran("2") == ""
    assert (place / "run.log").read_text() == runs


def test_the_unit_of_systemd_obeys_the_exit_statuses_and_gives_time_to_end() -> None:
    service = unit_of("word-count.service")["Service"]
    assert [int(status) for status in service["RestartPreventExitStatus"].split()] == [run.MEND, run.FENCED]
    assert int(service["TimeoutStopSec"]) >= stop_signals.SECONDS + 10
    assert (service["Restart"], service["KillMode"]) == ("always", "mixed")
    program, *arguments = shlex.split(service["ExecStart"])
    assert Path(program).name == "persistent-state"
    assert _parser().parse_args(arguments).follow


def test_the_page_of_operation_has_the_settings_of_the_unit_and_no_other() -> None:
    unit = (DEPLOY / "systemd/word-count.service").read_text("utf-8")
    (place,) = re.findall("^EnvironmentFile=(.*)$", unit, re.MULTILINE)
    (block,) = re.findall(rf"`{place}`, a file.*?```\n(.*?)```", PAGE, re.DOTALL)
    told = [line.partition("=")[0] for line in block.splitlines()]
    of_manifest = [each["name"] for each in container_of(DRIVER)["env"]]
    assert told == [*of_manifest, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]


def test_the_page_of_operation_sets_up_what_the_unit_expects() -> None:
    service = unit_of("word-count.service")["Service"]
    (block,) = re.findall(r"^```\n(useradd .*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    commands = [shlex.split(line) for line in block.splitlines()]
    by_name = {Path(words[0]).name: words for words in commands}
    program, _, application, *_ = shlex.split(service["ExecStart"])
    assert by_name["useradd"][-1] == service["User"]
    assert by_name["mkdir"][-1] == by_name["chown"][-1] == service["WorkingDirectory"]
    assert by_name["python3"][-1] == str(Path(program).parents[1])
    assert by_name["pip"][0] == str(Path(program).parent / "pip")
    assert by_name["pip"][-1] in {f"pyspark=={argument.partition('=')[2]}" for argument in of_dockerfile("ARG")}
    (extras,) = re.findall(r"^\.\[(.*)\]$", by_name["pip"][-2])
    assert {*extras.split(",")} <= {*setup()["options.extras_require"]}
    copied = {words[1]: words[2] for words in commands if words[0] == "cp"}
    assert copied[f"deploy/{application.partition(':')[0]}.py"].rstrip("/") == service["WorkingDirectory"]
    assert all((ROOT / source).exists() for source in copied)
    assert by_name["chmod"] == ["chmod", "600", service["EnvironmentFile"]]


def test_the_command_that_the_page_of_operation_runs_once_under_systemd_is_that_of_the_manifest() -> None:
    (line,) = re.findall(r"`systemd-run ([^`]*)`", PAGE)
    words = shlex.split(line)
    (program,) = [word for word in words if word.endswith("/persistent-state")]
    assert _parser().parse_args(words[words.index(program) + 1 :]) == run_of(ONCE)
    unit = (DEPLOY / "systemd/word-count.service").read_text("utf-8").splitlines()
    assert {words[at + 1] for at, word in enumerate(words) if word == "-p"} <= {*unit}
    assert f"ExecStart={program} " in "\n".join(unit)


def test_the_application_of_the_image_needs_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    from persistent_state.cli.loader import load_application

    monkeypatch.delenv("EVENTS", raising=False)
    with pytest.raises(InvalidInputError, match="KeyError\\('EVENTS'\\)"):
        load_application(f"{DEPLOY / 'word_count.py'}:app")


ALERTS = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
    if "alert" in rule
]


def test_the_page_of_operation_explains_each_alert() -> None:
    rows = re.findall(r"^\| `(PersistentState\w+)` \| (\w+) \| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)
    assert [(name, severity) for name, severity, _, _ in rows] == [
        (rule["alert"], rule["labels"]["severity"]) for rule in ALERTS
    ]
    assert len({cell for row in rows for cell in row[2:]}) == 2 * len(rows)


def test_the_page_of_operation_names_every_file_that_is_deployed() -> None:
    deployed = {str(file.relative_to(ROOT)) for file in FILES}
    named = {*re.findall(r"`(deploy/[\w./-]+\.\w+|deploy/Dockerfile)`", PAGE)}
    assert named == deployed
