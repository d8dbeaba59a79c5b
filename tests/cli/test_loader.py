"""An application is loaded by its name, from where Python or the user has it; each misuse is one sentence that says where."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from persistent_state import Application, InvalidInputError, StateError, StoreUnavailableError, TaskFailedError
from persistent_state.cli.loader import load_application

ROOT = Path(__file__).parents[2]

CODE = """
from persistent_state import Application
from prices_of_shop import interval

app = Application("shop", "memory://shop", checkpoint_interval=interval)
number = 3


def make():
    return Application("made", "memory://shop")


def make_of(store):
    return Application("made", store)


def nothing():
    return None


def fail():
    return {}["shop"]


def wrong():
    return Application("a/b", "memory://shop")


def leave():
    raise SystemExit(3)
"""
MAKERS = """
from os import getcwd

from persistent_state import Application


def build(interval="1 minute"):
    return Application("made", "memory://shop", checkpoint_interval=interval)


def _hidden():
    return None


def build_of(store):
    return Application("made", store)
"""
BROKEN = "import prices_of_shop\n\n\nprices_of_shop.absent\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "shop_of_ours").mkdir()
    (tmp_path / "shop_of_ours" / "__init__.py").write_text("")
    (tmp_path / "shop_of_ours" / "streams.py").write_text(CODE)
    (tmp_path / "streams_of_shop.py").write_text(CODE)
    (tmp_path / "prices_of_shop.py").write_text('interval = "1 minute"\n')
    (tmp_path / "makers_of_shop.py").write_text(MAKERS)
    (tmp_path / "broken_shop.py").write_text(BROKEN)
    (tmp_path / "unreadable_shop.py").write_text("a = 1\nb = = 2\n")
    (tmp_path / "importing_shop.py").write_text("import no_such_module_of_shop\n")
    (tmp_path / "json.py").write_text("app = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {*sys.modules}
    yield tmp_path
    for name in {*sys.modules} - before:
        if "shop" in name:
            del sys.modules[name]


@pytest.mark.parametrize(
    ("named", "name"),
    [
        ("shop_of_ours.streams:app", "shop"),
        ("streams_of_shop:app", "shop"),
        ("streams_of_shop:make", "made"),
        ("streams_of_shop.py:app", "shop"),
        ("./streams_of_shop.py:make", "made"),
    ],
)
def test_an_application_is_found_by_a_module_or_a_file(named: str, name: str) -> None:
    assert load_application(named).name == name


def test_a_file_is_found_anywhere_with_what_stands_beside_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert load_application(f"{folder}/streams_of_shop.py:app").name == "shop"
    # It is one module, however it is named.
    assert load_application("../streams_of_shop.py:app") is load_application("streams_of_shop:app")


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        ("streams_of_shop", "application='streams_of_shop' names no application; write it as MODULE:APP, such as"),
        (":app", "application=':app' names no application; write it as MODULE:APP, such as"),
        (
            "no_such_shop:app",
            "there is no module no_such_shop in {folder}, or where else Python looks; look at its name.",
        ),
        ("shop_of_ours.other:app", "there is no module shop_of_ours.other in {folder}, or where else Python looks"),
        ("no_such_shop.py:app", "there is no file no_such_shop.py; look at its name."),
        (
            "streams_of_shop:other",
            "streams_of_shop has no other; its applications are app; a function that returns one can be named, too: make, "
            "nothing, fail, wrong, leave.",
        ),
        ("prices_of_shop:app", "prices_of_shop has no app; it has no Application."),
        (
            "makers_of_shop:app",
            "makers_of_shop has no app; it has no Application; a function that returns one can be named, too: build.",
        ),
        (
            "streams_of_shop:number",
            "streams_of_shop:number is of type int; name an Application, or a function without parameters that",
        ),
        ("streams_of_shop:make_of", "streams_of_shop:make_of is of type function; name"),
        (
            "streams_of_shop:nothing",
            "streams_of_shop:nothing is of type NoneType; name an Application, or a function without",
        ),
        (
            "streams_of_shop:fail",
            "streams_of_shop:fail can't be called: KeyError('shop') at {folder}/streams_of_shop.py:22 in fail.",
        ),
        (
            "streams_of_shop:wrong",
            "in __init__, called from {folder}/streams_of_shop.py:26 in wrong.",
        ),
        ("streams_of_shop:leave", "SystemExit(3) at {folder}/streams_of_shop.py:30 in leave."),
        (
            "broken_shop:app",
            "broken_shop can't be imported: AttributeError(\"module 'prices_of_shop' has no attribute 'absent'\") at "
            "{folder}/broken_shop.py:4 in <module>.",
        ),
        ("unreadable_shop:app", "unreadable_shop can't be imported: invalid syntax at {folder}/unreadable_shop.py:2."),
        (
            "importing_shop:app",
            "ModuleNotFoundError(\"No module named 'no_such_module_of_shop'\") at {folder}/importing_shop",
        ),
        ("json.py:app", "json.py has the name of another module, "),
    ],
)
def test_what_cannot_be_loaded_is_one_sentence_that_names_it(named: str, sentence: str, folder: Path) -> None:
    with pytest.raises(InvalidInputError) as refused:
        load_application(named)
    assert sentence.format(folder=folder) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("is_called", [False, True])
@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        ("errors.StoreUnavailableError('no answer.')", StoreUnavailableError),
        ("errors.TaskFailedError('bad.')", TaskFailedError),
        ("ConnectionError('no answer')", StateError),
        ("TimeoutError('no answer')", StateError),
        ("urllib.error.URLError(OSError(-3, 'Temporary failure in name resolution'))", StateError),
        ("FileNotFoundError('no file')", InvalidInputError),
        ("PermissionError('no')", InvalidInputError),
        ("ValueError('no')", InvalidInputError),
    ],
)
def test_what_may_pass_is_told_from_what_would_fail_again(
    is_called: bool, raised: str, kind: type[StateError], folder: Path
) -> None:
    code = f"import urllib.error\nfrom persistent_state import errors\n\ndef make():\n    raise {raised}\n"
    (folder / "failing_shop.py").write_text(code if is_called else f"{code}\nmake()\n")
    with pytest.raises(StateError) as refused:
        load_application("failing_shop:make")
    assert type(refused.value) is kind
    assert str(refused.value).startswith(
        f"failing_shop{':make' * is_called} can't be {'call' if is_called else 'import'}ed: "
    )
    assert f" at {folder}/failing_shop.py:5 in make" in str(refused.value)


@pytest.mark.parametrize(
    ("call", "done"), [("run(None)", "started"), ("start(None)", "started"), ("rewind('2026-01-01')", "rewound")]
)
@pytest.mark.parametrize("is_called", [False, True])
def test_a_module_that_starts_its_application_when_it_is_loaded_is_refused(
    is_called: bool, call: str, done: str, folder: Path
) -> None:
    code = f"from persistent_state import Application\n\ndef make():\n    Application('a', 'memory://shop').{call}\n"
    (folder / "starting_shop.py").write_text(code if is_called else f"{code}\nmake()\n")
    with pytest.raises(InvalidInputError) as refused:
        load_application("starting_shop.py:make")
    place = f"{folder}/starting_shop.py:4 in make"
    assert str(refused.value) == (
        f"starting_shop{'.py:make' * is_called} can't be {'call' if is_called else 'import'}ed: application=a is {done} "
        f"at {place} "
        'while a command loads starting_shop.py:make; put that below `if __name__ == "__main__":`.'
    )
    # A command itself starts it, after it has loaded it.
    with pytest.raises(InvalidInputError, match="application a has no task"):
        Application("a", "memory://shop").rewind("2026-01-01")


def test_an_application_is_not_started_in_a_worker_of_spark(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "starting_shop.py").write_text(f"{CODE}\napp.run(None)\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec("pyspark.daemon", None))
    with pytest.raises(InvalidInputError) as refused:
        importlib.import_module("starting_shop")
    assert str(refused.value) == (
        f"application=shop is started at {folder}/starting_shop.py:32 in <module> while a worker of Spark loads its module; "
        'put that below `if __name__ == "__main__":`.'
    )


def test_an_error_of_the_users_code_is_told_without_secrets(folder: Path) -> None:
    (folder / "secret_shop.py").write_text("raise ValueError('not https://me:hunter2@host/a?sig=abc')\n")
    with pytest.raises(InvalidInputError) as refused:
        load_application("secret_shop:app")
    assert "ValueError('not https://***@host/a?***') at " in str(refused.value)


def test_to_load_an_application_starts_no_session(folder: Path) -> None:
    # A program in this folder would take it for Python's own.
    (folder / "json.py").unlink()
    program = (
        "import sys\nfrom persistent_state.cli.loader import load_application\nload_application('streams_of_shop:app')\n"
        "assert not {'pyspark', 'py4j'} & set(sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
