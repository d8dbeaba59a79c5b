"""What is released: built as the workflow builds it, installed where nothing else is, and used from outside of this tree."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from configparser import ConfigParser
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest
import yaml

import persistent_state
from persistent_state.cli.doctor.packages import OF_A_CHECKOUT as NOT_OF_THE_LIBRARY
from persistent_state.cli.run import MEND
from tests import page_code
from tests.local.test_command import APPLICATION, program_of_readme
from tests.local.test_engine import expected, state, write
from tests.release.parts import OF_A_CHECKOUT, PARTS, SILENT
from tests.spark.sessions import QUICK_JAVA

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
VERSION = persistent_state.__version__
TAG = f"v{VERSION}"
SERVER, REPOSITORY = "https://code.example", "someone/persistent-state"
ADDRESS = f"{SERVER}/{REPOSITORY}"
STORE = ROOT / "tests" / "fixtures" / "store-v1"
OF_AN_EARLIER_RUN = ("PYTHONPATH", "SPARK_HOME", "SPARK_REMOTE", "PYSPARK_PYTHON", "PYSPARK_GATEWAY_PORT")


def run(command: Sequence[str | Path], cwd: Path, **environment: str) -> str:
    """Return what a command prints. It fails the test if it fails."""
    inherited = {name: value for name, value in os.environ.items() if name not in OF_AN_EARLIER_RUN}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**inherited, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-5000:]}"
    return done.stdout


def kept() -> list[str]:
    """The files of this repository; of a source distribution, which is no repository, all that it has."""
    if (ROOT / ".git").exists():
        # What is new counts too, unless it is to be ignored.
        listed = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], ROOT).split("\0")
        return sorted(name for name in listed if name and (ROOT / name).exists())
    files = (file.relative_to(ROOT) for file in ROOT.rglob("*") if file.is_file())
    return sorted(
        str(file)
        for file in files
        if not {"__pycache__", ".venv", "build", "dist"} & {*file.parts}
        and not re.search(r"\.egg-info/|^\.\w+_cache/|^\.hypothesis/|^PKG-INFO$", str(file))
    )


def copy_tree(to: Path) -> None:
    for name in kept():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to / name)
    log = to / "CHANGELOG.md"
    text = log.read_text("utf-8")
    if f"\n## {VERSION}" not in text:
        log.write_text(text.replace("\n## Unreleased\n", f"\n## {VERSION} - 2026-12-01\n", 1), "utf-8")


def steps_of(workflow: str, job: str) -> list[dict[str, Any]]:
    parsed = yaml.safe_load((WORKFLOWS / workflow).read_text("utf-8"))
    steps: list[dict[str, Any]] = parsed["jobs"][job]["steps"]
    return steps


@dataclass(frozen=True)
class Built:
    """The tree that was built, and what was built of it."""

    tree: Path
    wheel: Path
    source: Path

    def metadata(self) -> Any:
        with zipfile.ZipFile(self.wheel) as wheel:
            return message_from_bytes(wheel.read(f"persistent_state-{VERSION}.dist-info/METADATA"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """What the commands of the workflow's build make of a copy of this tree."""
    tree = tmp_path_factory.mktemp("tree")
    copy_tree(tree)
    # `python` is the one that runs the tests.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    settings = {"PATH": path, "GITHUB_REF_NAME": TAG, "GITHUB_SERVER_URL": SERVER, "GITHUB_REPOSITORY": REPOSITORY}
    commands = [step["run"] for step in steps_of("release.yml", "build") if "run" in step]
    assert len(commands) == 4
    for command in commands:
        run(["bash", "-euo", "pipefail", "-c", command], tree, **settings)
    (wheel,), (source,) = (tree / "dist").glob("*.whl"), (tree / "dist").glob("*.tar.gz")
    return Built(tree, wheel, source)


@dataclass(frozen=True)
class Environment:
    """A virtual environment."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def install(self, *what: str) -> None:
        # Packages are compiled when they are used. pip has kept them from the making of the tests' own environment.
        run([self.python, "-m", "pip", "install", "--quiet", "--no-compile", *what], self.folder)


@pytest.fixture(scope="module")
def empty(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment in which there was nothing, and now is the wheel with what it needs."""
    made = Environment(tmp_path_factory.mktemp("empty"))
    run([sys.executable, "-m", "venv", made.folder], made.folder)
    made.install(str(built.wheel))
    return made


@pytest.fixture(scope="module")
def bare(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment without PySpark, made as docs/local.md says, of the wheel in the place of a checkout."""
    made = Environment(tmp_path_factory.mktemp("bare"))
    run([sys.executable, "-m", "venv", made.folder], made.folder)
    commands = re.findall("^pip install (.+)$", page_code.text_of("docs/local.md"), re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        made.install(*(str(built.wheel) if each == "." else each for each in shlex.split(command)))
    return made


def test_a_tag_is_checked_built_and_published_and_nothing_else_is() -> None:
    # YAML reads the word `on` as true.
    release = yaml.safe_load((WORKFLOWS / "release.yml").read_text("utf-8"))
    assert release[True] == {"push": {"tags": ["v*"]}}
    assert release["permissions"] == {"contents": "read"}
    jobs = release["jobs"]
    assert {name: job.get("needs") for name, job in jobs.items()} == {
        "check": None,
        "build": "check",
        "publish": "build",
    }
    assert jobs["check"]["uses"] == "./.github/workflows/ci.yml"
    # Only who publishes may ask for the identity by which the registry knows this workflow, and he runs nothing of this tree.
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == ["publish"]
    assert jobs["publish"]["environment"] == "release"
    used = [step["uses"].partition("@")[0] for step in jobs["publish"]["steps"]]
    assert used == ["actions/download-artifact", "pypa/gh-action-pypi-publish"]
    given, taken = jobs["build"]["steps"][-1]["with"], jobs["publish"]["steps"][0]["with"]
    assert (given["name"], given["path"]) == (taken["name"], taken["path"]) == ("dist", "dist/")
    assert not re.search(r"secrets\.|password|token:(?! write)", (WORKFLOWS / "release.yml").read_text("utf-8"))


def test_the_workflow_of_ci_runs_what_runs_everywhere() -> None:
    ci = yaml.safe_load((WORKFLOWS / "ci.yml").read_text("utf-8"))
    assert "workflow_call" in ci[True]
    assert "bash .ci/run ${{ matrix.target }}" in [step.get("run") for step in steps_of("ci.yml", "check")]
    assert ci["jobs"]["check"]["container"].startswith("debian:")


def test_the_workflow_installs_what_the_tests_build_with() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    (install,) = [step["run"] for step in steps_of("release.yml", "build") if "pip install" in step.get("run", "")]
    assert {*re.findall("'([^']+)'", install)} <= {*config["options.extras_require"]["release"].split("\n")}


@pytest.mark.parametrize(
    ("tag", "log", "says"),
    [
        ("v0.0.9", f"## {VERSION}", f"tag=v0.0.9 is not of version={VERSION}; tag {TAG}, or change"),
        (VERSION, f"## {VERSION}", f"tag={VERSION} is not of version={VERSION}; tag {TAG}, or change"),
        (TAG, "## Unreleased", f"CHANGELOG.md has no section {VERSION}; give its section Unreleased this name"),
    ],
)
def test_a_tag_that_does_not_fit_is_refused_and_changes_nothing(tmp_path: Path, tag: str, log: str, says: str) -> None:
    (tmp_path / "persistent_state").mkdir()
    for name in ("persistent_state/__init__.py", "setup.cfg", "README.md"):
        shutil.copy2(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{log}\n")
    command = [sys.executable, str(ROOT / ".ci" / "release.py"), tag, ADDRESS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(says)
    for name in ("setup.cfg", "README.md"):
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()


def test_the_source_distribution_has_every_file_of_this_repository(built: Built) -> None:
    top = f"persistent_state-{VERSION}/"
    with tarfile.open(built.source) as source:
        names = {member.name.removeprefix(top) for member in source.getmembers() if member.isfile()}
    assert [*{*kept()} - names] == [], "name it in MANIFEST.in"
    made = {name for name in names - {*kept()} if not name.startswith("persistent_state.egg-info/")}
    assert made <= {"PKG-INFO"}


def test_the_wheel_has_the_packages_with_their_types_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        names = set(wheel.namelist())
    packages = ("monoids", "persistent_state", "pyspark_persistent_state")
    ours = {name for name in kept() if name.split("/")[0] in packages}
    assert {"persistent_state/py.typed", "monoids/py.typed"} <= ours
    assert {name for name in names if ".dist-info/" not in name} == ours
    assert f"persistent_state-{VERSION}.dist-info/licenses/LICENSE" in names


def test_the_metadata_says_where_the_project_is_and_no_link_of_its_page_is_relative(built: Built) -> None:
    metadata = built.metadata()
    assert (metadata["Name"], metadata["Version"]) == ("persistent-state", VERSION)
    addresses = dict(each.split(", ") for each in metadata.get_all("Project-URL"))
    files = f"{ADDRESS}/blob/{TAG}"
    assert addresses == {
        "Source": ADDRESS,
        "Documentation": f"{files}/docs/first-task.md",
        "Changelog": f"{files}/CHANGELOG.md",
        "Issues": f"{ADDRESS}/issues",
    }
    page = metadata.get_payload()
    links = re.findall(r"\]\(([^)\s]+)\)", page)
    assert len(links) > 20
    ours = [link for link in links if not re.match("[a-z]+:", link)]
    assert {link[0] for link in ours} <= {"#"}
    for link in links:
        if link.startswith(files):
            assert (ROOT / link.removeprefix(f"{files}/").partition("#")[0]).exists()


def test_the_unpacked_source_distribution_passes_tests(built: Built, tmp_path: Path) -> None:
    with tarfile.open(built.source) as source:
        source.extractall(tmp_path, filter="data")
    (root,) = tmp_path.iterdir()
    files = ["tests/test_docs.py", "tests/store/test_codec.py"]
    done = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files], root, PYTHONPATH=str(root))
    assert re.search(r"\d{3} passed", done)


EDITABLE = """
import sys
from build import ProjectBuilder
from build.env import DefaultIsolatedEnv

with DefaultIsolatedEnv() as env:
    builder = ProjectBuilder.from_isolated_env(env, ".")
    env.install(builder.build_system_requires)
    builder.build("editable", sys.argv[1])
"""


def test_an_editable_copy_is_in_a_folder_where_spark_finds_the_data_source(built: Built, tmp_path: Path) -> None:
    printed = run([sys.executable, "-c", EDITABLE, tmp_path], built.tree)
    assert not re.search("editable.* will be removed", printed)
    (made,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(made) as wheel:
        names = [name for name in wheel.namelist() if ".dist-info/" not in name]
        # Spark walks the folders of `sys.path`, so a module that finds the packages would not do.
        (name,) = names
        assert name.endswith(".pth")
        assert wheel.read(name).decode().split("\n") == [str(built.tree.resolve()), ""]


def test_the_wheel_runs_a_task_and_spark_finds_its_data_source(empty: Environment, tmp_path: Path) -> None:
    shutil.copy2(ROOT / "tests" / "release" / "user.py", tmp_path / "user.py")
    # As in an environment that is activated: else Spark asks the python3 of the PATH for data sources.
    quick = {"JDK_JAVA_OPTIONS": QUICK_JAVA, "PYSPARK_PYTHON": str(empty.python)}
    told = run([empty.python, "user.py", tmp_path], tmp_path, **quick)
    assert told.splitlines()[-1] == "[('be', 2), ('not', 1), ('or', 1), ('to', 2)]"
    program = empty.folder / "bin" / "persistent-state"
    assert run([program, "--version"], tmp_path) == f"persistent-state {VERSION}\n"
    assert "word-count" in run([program, "show", "apps"], tmp_path)
    where = "import persistent_state, monoids; print(persistent_state.__file__, monoids.__file__)"
    assert run([empty.python, "-c", where], tmp_path).count(str(empty.folder)) == 2

    # The same environment, as the doctor sees it: without any extra, and with a Spark that starts.
    found = json.loads(run([program, "doctor", "apps", "--json"], tmp_path, **quick))
    assert {check["status"] for check in found} == {"ok"}, found
    others = {check["check"]: check["text"] for check in found}["other extras"]
    assert others == f"not installed: {', '.join(extra for extra in extras() if extra not in NOT_OF_THE_LIBRARY)}"


def test_without_pyspark_and_java_applications_run_and_stores_are_read(bare: Environment, tmp_path: Path) -> None:
    alone = {"PATH": str(bare.folder / "bin"), "JAVA_HOME": ""}
    absent = (
        "import importlib.util, shutil\nassert not importlib.util.find_spec('pyspark') and not shutil.which('java')\n"
    )
    printed = run([bare.python, "-c", f"{absent}{program_of_readme()}"], tmp_path, **alone)
    assert ast.literal_eval(printed) == {"be": 2, "not": 1, "or": 1, "to": 2}

    (tmp_path / "shops.py").write_text(APPLICATION)
    write(tmp_path / "in", 0, range(30))
    program = bare.folder / "bin" / "persistent-state"
    assert '"result":"done"' in run([program, "run", "shops:app", "--local", "--drain"], tmp_path, **alone)
    assert "PerShop" in run([program, "show", "store", "shops"], tmp_path, **alone)
    assert state(tmp_path) == expected(30)
    assert "all is as it was written" in run([program, "verify", "store"], tmp_path, **alone)
    checks = json.loads(run([program, "doctor", "store", "--local", "--json"], tmp_path, **alone))
    assert {check["status"] for check in checks} == {"ok"}, checks

    refused = subprocess.run(
        [program, "run", "shops:app"], cwd=tmp_path, env={**os.environ, **alone}, capture_output=True, text=True
    )
    assert refused.returncode == MEND
    assert "package='pyspark' is missing for Spark" in refused.stderr
    assert "Traceback" not in refused.stderr


def extras() -> list[str]:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    return list(config["options.extras_require"])


def test_a_users_file_is_checked_by_the_types_of_the_wheel(empty: Environment, tmp_path: Path) -> None:
    text = (ROOT / "tests" / "release" / "user.py").read_text("utf-8")
    (tmp_path / "user.py").write_text(text)
    (tmp_path / "wrong.py").write_text(f"{text}\nword: str = NonWindowState(monoids.Sum()).get()\n")
    (tmp_path / "mypy.ini").write_text("[mypy]\n[mypy-pandas.*,pyarrow.*]\nignore_missing_imports = True\n")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(empty.python)]
    assert run([*mypy, "user.py"], tmp_path).startswith("Success")
    done = subprocess.run([*mypy, "wrong.py"], cwd=tmp_path, capture_output=True, text=True)
    assert "Incompatible types in assignment" in done.stdout
    assert done.stdout.count("error:") == 1


def test_without_an_extra_each_part_says_in_a_sentence_which_to_install(empty: Environment, tmp_path: Path) -> None:
    told = run([empty.python, "-I", ROOT / "tests" / "release" / "parts.py", STORE], tmp_path)
    raised = json.loads(told.splitlines()[-1])
    assert {*raised} == {*PARTS}
    for extra, text in raised.items():
        if extra not in SILENT:
            # PostgreSQL needs what `sql` brings, before it needs its driver.
            named = f"sql|{extra}" if extra == "postgresql" else extra
            install = rf"'persistent-state\[(?:{named})\]'(?:, in a checkout '\.\[(?:{named})\]')?"
            sentence = rf"\w+Error: package='\w+' is missing.*; pip install {install}[^.]*\."
            assert re.fullmatch(sentence, text), f"{extra}: {text}"


def test_there_is_a_piece_of_code_for_each_extra() -> None:
    assert {*PARTS} | {*NOT_OF_THE_LIBRARY} == {*extras()}
    assert {*OF_A_CHECKOUT} <= {*NOT_OF_THE_LIBRARY}


@pytest.mark.soak
@pytest.mark.skipif("SOAK" not in os.environ, reason="takes minutes: make soak")
@pytest.mark.parametrize("extra", [*PARTS, *OF_A_CHECKOUT])
def test_each_extra_alone_brings_what_its_part_needs(
    empty: Environment, built: Built, extra: str, tmp_path: Path
) -> None:
    # A layer on what is always needed, so that only what the extra brings is installed.
    layer = Environment(tmp_path / "layer")
    run([sys.executable, "-m", "venv", layer.folder], tmp_path)
    (packages,) = layer.folder.glob("lib/python*/site-packages")
    (below,) = empty.folder.glob("lib/python*/site-packages")
    (packages / "below.pth").write_text(f"{below}\n")
    layer.install(f"{built.wheel}[{extra}]")
    told = run([layer.python, "-I", ROOT / "tests" / "release" / "parts.py", STORE, extra], tmp_path)
    assert json.loads(told.splitlines()[-1]) == {}
