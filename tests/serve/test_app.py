"""The server's answers: every page and every error, whatever the store is like, and who may ask."""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
from base64 import b64decode, b64encode
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree

import pytest
from starlette.testclient import TestClient

from persistent_state import open_store
from persistent_state.cli.commands import main
from persistent_state.errors import StoreUnavailableError
from persistent_state.metrics.of_store import of_store
from persistent_state.protocol import deliver, rewind
from persistent_state.serve import app, charts
from persistent_state.serve.workers import Workers
from persistent_state.store.files import MemoryFiles
from persistent_state.store.files.base import Files
from tests import core
from tests.refusing import RefusingFiles
from tests.serve.browser import play
from tests.serve.worlds import STORE, Served, copy
from tests.two_tasks import TwoTasks
from tests.waiting import PATIENCE

TOKEN = "a-long-secret"


def test_the_page_says_that_a_file_of_late_rows_is_missing(tmp_path: Path) -> None:
    store = copy(tmp_path)
    for path in (store / "app/runs/Notes").glob("*.side.arrow"):
        path.unlink()
    text = Served(store).page().text
    assert "a file that the newest log entry names is gone" in text
    assert "no longer retained" not in text


def test_the_page_tells_of_an_application_all_that_the_store_knows() -> None:
    page = Served(STORE).page()
    assert page.landmarks == ["header", "nav", "main", "footer"]
    assert [text for level, text in page.headings if level in (2, 3)] == [
        "Applications", "Application app", "Tasks, and what feeds them", "Clocks on one axis", "Throughput and lag",
        "Late and bad rows", "Kept clocks", "Timelines", "Look a key up",
    ]  # fmt: skip
    waits = "task=Notes: the newest message of its source is of 1970-01-01T00:00:00.000235Z"
    assert f"The global clock waits for {waits}." in page.text
    (row,) = page.tables["The applications of this store"][1:]
    assert row == ["app", "1970-01-01T00:00:00.000220Z", waits, "54.3 kB", "can be read"]
    assert [row[0] for row in page.tables["How far each task is"]] == ["task", "Notes", "Totals"]
    assert page.tables["What each task reads and keeps, and its size"][1][-1].endswith("kB")
    assert ["Notes", "late", "1"] in page.tables["Rows that did not count, by reason"]
    samples = page.tables["Samples of Notes"]
    assert {row[0] for row in samples[1:]} == {"late", "no timestamp"}
    assert any('"shop":' in row[3] for row in samples[1:])
    assert [row[1] for row in page.tables["The clocks at which the state can be read"][1:]] == ["220", "200", "160"]
    assert "The application was never taken back." in page.text
    (graph,) = (given for tag, given in page.attributes if tag == "img")
    drawn = b64decode(graph["src"].partition("base64,")[2]).decode()
    assert ">Totals</text>" in drawn
    charts = [given["aria-label"] for tag, given in page.attributes if tag == "svg" and "aria-label" in given]
    assert charts[0] == (
        "Clocks on one axis of event time, from 1970-01-01T00:00:00.000160Z to 1970-01-01T00:00:00.000235Z"
    )


def test_clocks_lags_and_paces_of_the_last_entries_are_drawn() -> None:
    world = TwoTasks()
    for second, at in enumerate((15, 25, 35), 1):
        for task in "AB":
            world.read(task, {"x": at}, "x", now=second * 1_000_000)
    page = Served(world.log.files).page()
    charts = [given["aria-label"] for tag, given in page.attributes if tag == "svg" and "aria-label" in given]
    spans = "written from 1970-01-01T00:00:0{}Z to 1970-01-01T00:00:03Z"
    assert charts[1:] == [
        f"Clocks over the last entries, {spans.format(1)}",
        f"Positions read a second, {spans.format(1)}",
        f"Lag, {spans.format(1)}",
    ]
    rows = page.tables["The last entries, the newest first"]
    assert rows[1][2:4] == ["1970-01-01T00:00:30Z", "5 s"]
    assert "throughput" in page.text
    assert "1 a second, by positions of the sources" in page.text


def test_the_page_of_the_pictures_tells_nothing_odd() -> None:
    store = f"memory://{core.new_id()}"
    play(store)
    text = Served(store).page().text
    found = re.search(r"([0-9.,e-]+) a second, by positions of the sources", text)
    assert found is not None
    # Each minute two messages or one are read for each of two tasks.
    assert 1 / 60 < float(found[1]) < 4 / 60
    assert "1970" not in text


def test_names_on_the_axis_stand_above_their_rails_and_the_axis_fits_any_screen() -> None:
    name = "an-output-of-a-name-that-is-longer-than-most-names-are " * 2
    outputs = [{"output": name, "clock": 3}]
    task = {"task": "<A>", "clock": 2, "channels": {"newest_at": 5}, "outputs": outputs}
    drawn = ElementTree.fromstring(charts.axis({"clock": 2, "tasks": [task], "retained": [1], "kept": []}))
    assert "viewBox" not in drawn.attrib
    names, rails = ([each.attrib for each in drawn.iter() if each.get("class") == kind] for kind in ("name", "rail"))
    for above, rail in zip(names, rails, strict=True):
        # A dot has five pixels on each side of its rail.
        assert float(above["y"]) < float(rail["y1"]) - 8
    assert [title.text for title in drawn.iter("title")] == ["global clock", "<A>", f"→ {name}", "kept clocks"]
    shown = [each.find("title").tail for each in drawn.iter("text") if each.get("class") == "name"]  # type: ignore[union-attr]
    assert max(map(len, shown)) <= 60
    assert [float(dot.attrib["cx"].removesuffix("%")) for dot in drawn.iter("circle")] == [26, 26, 98, 50, 2]


def test_a_pace_is_told_in_few_digits_and_never_as_nearly_nothing() -> None:
    paces = {
        0.0: "0",
        2.9e-8: "less than 0.01",
        0.0099: "less than 0.01",
        0.01: "0.01",
        1.54: "1.5",
        12_345.6: "12,346",
    }
    assert [charts.a_second(pace) for pace in paces] == [f"{text} a second" for text in paces.values()]


def test_a_channel_that_is_silent_is_named() -> None:
    world = TwoTasks()
    for task in "AB":
        world.read(task, {"x": 25, "y": 15}, "xy")
    world.start()
    for task in "AB":
        world.read(task, {"x": 45}, "xy")
    page = Served(world.log.files).page()
    assert (
        "The global clock waits for task=A: channel='y' of its source has delivered no message that counts since the "
        "last start; idle_after lets it go." in page.text
    )


def test_an_application_that_was_taken_back_has_its_timelines() -> None:
    world = TwoTasks()
    for task in "AB":
        for second, at in enumerate((15, 25, 35)):
            world.read(task, {"x": at}, "x", now=second * 1_000_000)
    deliver.record(world.log, core.newest(world.log).epoch, "A", "sink", 30_000_000, 0)
    served = Served(world.log.files)
    assert "The application was never taken back." in served.page().text
    planned = core.plan_rewind(world.log, 20_000_000, rewind.RETRACT)
    entry = rewind.rewind(world.log, planned, writer="somebody", now=4_000_000)
    page = served.page()
    assert f"The present timeline began with start {entry.timeline}: " in page.text
    assert [row[0] for row in page.tables["Timelines among the last entries"]] == ["timeline", "0", str(entry.timeline)]
    assert ", has yet to go back to 1970-01-01T00:00:20Z" in page.text
    assert "A dotted line from top to bottom" in page.text


def test_an_application_that_is_damaged_does_not_hide_the_others(tmp_path: Path) -> None:
    store = copy(tmp_path)
    shutil.copytree(store / "app", store / "broken")
    newest = max((store / "broken/log").iterdir())
    newest.write_text("{}")
    served = Served(store)
    page = served.page()
    assert [row[0::4] for row in page.tables["The applications of this store"][1:]] == [
        ["app", "can be read"],
        ["broken", "can't be read"],
    ]
    assert ("Application app" in page.text, "Application broken" in page.text) == (True, False)
    broken = served.page(application="broken")
    assert f"broken/log/{newest.name}" in broken.text
    assert 'persistent_state_readable{application="broken"} 0.0' in served.client.get("/metrics").text
    told = served.lookup(500, application="broken", task="Totals", shop="Bergen", item="1")
    assert f"broken/log/{newest.name}" in told["error"]


def test_what_was_seen_last_stays_while_an_entry_is_damaged(tmp_path: Path) -> None:
    store = copy(tmp_path)
    served = Served(store)
    before = served.page()
    newest = max((store / "app/log").iterdir())
    damaged = newest.with_name(f"{17:020d}.json")
    damaged.write_text("{}")
    page = served.page()
    assert f"app/log/{damaged.name}" in page.text
    for caption in ("How far each task is", "The last entries, the newest first"):
        assert page.tables[caption] == before.tables[caption]


def test_an_application_that_is_gone_leaves_the_page(tmp_path: Path) -> None:
    store = copy(tmp_path)
    shutil.copytree(store / "app", store / "other")
    served = Served(store)
    assert [link for link in served.page().links if "application=" in link] == [
        "?application=app",
        "?application=other",
    ]
    shutil.rmtree(store / "app")
    assert "Application other" in served.page().text
    served.page(404, application="app")
    shutil.rmtree(store / "other")
    page = served.page()
    assert "There is nothing to show yet." in page.text
    assert served.client.get("/metrics").text == "# EOF\n"
    assert served.client.get("/health").status_code == 200


def test_a_store_that_does_not_answer_is_503_and_what_was_seen_last_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    world = TwoTasks()
    for task in "AB":
        world.read(task, {"x": 25}, "x")
    served = Served(world.log.files)
    before = served.page()

    def fails(files: Files, folder: str) -> list[str]:
        raise StoreUnavailableError("the store is away; wait for it.")

    with monkeypatch.context() as patched:
        patched.setattr(MemoryFiles, "list", fails)
        page = served.page(503)
        assert "The store can't be read: the store is away; wait for it." in page.text
        assert page.tables["How far each task is"] == before.tables["How far each task is"]
        assert served.client.get("/health").status_code == 503
        assert (served.client.get("/metrics").status_code, served.client.get("/metrics").text) == (
            503,
            "the store is away; wait for it.\n",
        )
        told = served.lookup(503, application="app", task="A", word="x")
        assert told == {"error": "the store is away; wait for it."}
    assert "The store can't be read" not in served.page().text


def two_applications() -> RefusingFiles:
    """A store that refuses what a test says, with the applications a and app."""
    files = RefusingFiles("memory://" + core.new_id())
    for name in ("a", "app"):
        folder = STORE / "app"
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            files.create(f"{name}/{path.relative_to(folder)}", path.read_bytes())
    return files


def test_a_store_that_refuses_is_503_and_what_was_seen_last_stays() -> None:
    files = two_applications()
    served = Served(files)
    before = served.page()
    files.refused[:] = [""]
    page = served.page(503)
    assert "the token has expired. Renew it." in page.text
    assert "There is nothing to show yet." not in page.text
    assert page.tables["How far each task is"] == before.tables["How far each task is"]
    for path in ("/metrics", "/lookup?application=a&task=Totals&shop=Bergen&item=1", "/health"):
        assert served.client.get(path).status_code == 503
    files.refused.clear()
    served.now += 10
    assert "the token has expired" not in served.page().text
    # Neither does one that has yet to look.
    files.refused[:] = [""]
    assert "There is nothing to show yet." not in Served(files).page(503).text


def test_an_application_that_is_refused_does_not_hide_the_others() -> None:
    files = two_applications()
    files.refused[:] = ["a/"]
    served = Served(files)
    page = served.page()
    assert [row[0::4] for row in page.tables["The applications of this store"][1:]] == [
        ["a", "can't be read"],
        ["app", "can be read"],
    ]
    assert "the token has expired. Renew it." in served.page(application="a").text
    metrics = served.client.get("/metrics")
    assert metrics.status_code == 200
    for name, value in (("a", "0.0"), ("app", "1.0")):
        assert f'persistent_state_readable{{application="{name}"}} {value}' in metrics.text
    refused, answered = (
        served.client.get(f"/lookup?application={name}&task=Totals&shop=Bergen&item=1") for name in ("a", "app")
    )
    assert (refused.status_code, answered.status_code) == (503, 200)


def test_metrics_are_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    answer = Served(STORE).client.get("/metrics")
    assert answer.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert main(["metrics", str(STORE)]) == 0
    assert answer.text == capsys.readouterr().out


def test_a_key_is_looked_up_on_the_page_without_a_script() -> None:
    served = Served(STORE)
    asked = {"application": "app", "task": "Totals", "key.shop": "Bergen", "key.item": "1", "clock": "160"}
    page = served.page(**asked)
    assert '"total": 488' in page.text
    assert [given.get("value") for given in page.fields if given.get("name") == "key.shop"] == ["", "Bergen"]
    (chosen,) = (given["value"] for tag, given in page.attributes if tag == "option" and "selected" in given)
    assert chosen == "160"
    assert "The key is not there, or has no value." in served.page(**{**asked, "key.shop": "Oslo"}).text
    assert "is not int64" in served.page(400, **{**asked, "key.item": "one"}).text
    assert "is not kept; take clock=" in served.page(404, **{**asked, "clock": "170"}).text
    names = {given["name"] for given in page.fields if "name" in given}
    assert names == {"key.shop", "key.item", "null", "clock"}


def test_what_a_store_holds_is_escaped() -> None:
    world = TwoTasks(outputs=("<b>&'\"",))
    for task in "AB":
        world.read(task, {"<script>": 25, "y": 15}, ["<script>", "y"])
    served = Served(world.log.files)
    page = served.page(**{"task": "A", "key.word": '"><script>x</script>', "application": "app"})
    assert page.tags.count("script") == 1
    assert "<b>&'\"" in page.text
    assert served.page(404, application="<script>").tags.count("script") == 1


def test_every_answer_lets_a_browser_load_nothing_from_elsewhere() -> None:
    served = Served(STORE, TOKEN)
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    for path in ("/", "/lookup", "/metrics", "/health", "/login", "/nowhere"):
        for headers in ({}, bearer):
            answer = served.client.get(path, headers=headers)
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; ")
            assert not re.search(r"unsafe|https?:|\*", policy)
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"
    page = Served(STORE).page()
    for text, kind in ((page.styles, "style"), (page.scripts, "script")):
        digest = b64encode(sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "url(" not in page.styles
    assert "@import" not in page.styles


def test_nothing_can_be_changed() -> None:
    served = Served(STORE)
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
        answer = served.client.request(method, "/")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    head = served.client.head("/")
    assert (head.status_code, head.content) == (200, b"")
    assert served.client.get("/nowhere").status_code == 404
    assert served.client.get("/nowhere").text == "There is nothing here; look at /, /lookup, /metrics, /health.\n"


def test_only_names_of_this_machine_are_answered_on_loopback() -> None:
    served = Served(STORE)
    for name in ("localhost", "localhost:8642", "127.0.0.1", "127.0.0.2:80", "[::1]:8642", "LOCALHOST"):
        assert served.client.get("/health", headers={"Host": name}).status_code == 200, name
    for name in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8642", "10.0.0.1", ""):
        answer = served.client.get("/", headers={"Host": name})
        assert (answer.status_code, "Totals" in answer.text) == (421, False), name
    # Elsewhere nobody knows the names of the machine, and there is a token.
    assert Served(STORE, TOKEN, host="0.0.0.0").client.get("/health", headers={"Host": "box"}).status_code == 200


def test_without_the_token_nothing_is_told_but_that_the_store_answers() -> None:
    client = Served(STORE, TOKEN).client
    for path in ("/", "/lookup?application=app&task=Totals", "/metrics", "/nowhere"):
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": f"Basic {TOKEN}"},
            {"Cookie": b"a=b; \xe4"},
        ):
            answer = client.get(path, headers=headers)
            assert answer.status_code == 401
            assert "Totals" not in answer.text
            assert TOKEN not in answer.text
    assert client.get("/metrics").headers["www-authenticate"] == "Bearer"
    assert client.get("/lookup").json()["error"].startswith("the token is missing or wrong; ")
    assert client.get("/health").text == "The store answers.\n"
    assert client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_a_browser_is_let_in_by_the_form_or_by_the_url() -> None:
    for first in ("form", "url"):
        served = Served(STORE, TOKEN)
        assert "Token of this server" in served.page(401).text
        assert served.client.post("/login", data={"token": "wrong"}).status_code == 401
        assert served.client.post("/login", content=b"x" * 5000).status_code == 413
        assert served.client.get("/?token=wrong").status_code == 401
        if first == "form":
            answer = served.client.post("/login", data={"token": TOKEN})
        else:
            answer = served.client.get("/", params={"token": TOKEN, "application": "app"})
        assert (answer.status_code, answer.headers["location"]) == (
            303,
            "./" if first == "form" else "./?application=app",
        )
        cookie = answer.headers["set-cookie"]
        assert cookie.endswith("; Path=/; HttpOnly; SameSite=Strict")
        assert TOKEN not in cookie
        assert "Application app" in served.page().text
        assert served.client.get("/metrics").status_code == 200
        # Cookies of other programs on this host are sent, too.
        own = cookie.partition(";")[0]
        for odd in ('foo={"a":1}', "justflag", "a b=1", 'x="unclosed', "ä=1"):
            for both in (f"{odd}; {own}", f"{own}; {odd}"):
                sent = {"Cookie": both.encode()}
                assert Served(STORE, TOKEN).client.get("/metrics", headers=sent).status_code == 200, both
        # Another token's cookie is none.
        other = Served(STORE, "another").client
        assert other.get("/metrics", headers={"Cookie": cookie.partition(";")[0]}).status_code == 401


def test_the_login_is_there_for_nothing_without_a_token() -> None:
    answer = Served(STORE).client.get("/login")
    assert (answer.status_code, answer.headers["location"]) == (303, "./")


def test_storage_options_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"key": "AKIAKEY", "secret": "hunter2", "client_kwargs": {"endpoint_url": "http://127.0.0.1:1/hunter3"}}
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    store = open_store(
        "s3://bucket/apps", storage_options={**options, "config_kwargs": {"retries": {"max_attempts": 0}}}
    )
    monkeypatch.setattr(
        type(store.files), "list", lambda *_: (_ for _ in ()).throw(StoreUnavailableError("the store is away."))
    )
    client = TestClient(app.application(store, "127.0.0.1", None, lambda: 0.0, lambda: 0), base_url="http://localhost")
    for path in ("/", "/metrics", "/health", "/lookup?application=app&task=A"):
        answer = client.get(path)
        assert answer.status_code == 503
        assert not re.search("hunter|AKIA", answer.text + str(answer.headers))


def test_odd_questions_are_answered_with_a_sentence() -> None:
    client = Served(STORE).client
    for params, status in (({"key": "[" * 3000}, 400), ({"clock": "9" * 5000}, 404)):
        answer = client.get("/lookup", params={"application": "app", "task": "Totals", **params})
        assert (answer.status_code, answer.json()["error"].endswith(".")) == (status, True), params
    twice = client.get("/", params=[("application", "app"), ("task", "Totals"), ("key.shop", "a"), ("key.shop", "b")])
    assert twice.status_code == 400
    assert "key.shop is given twice; give it once." in twice.text


def test_health_is_asked_of_the_store_once_a_second_and_by_one_thread() -> None:
    served = Served(STORE, TOKEN)
    with mock.patch("persistent_state.serve.app.find_applications") as asked:
        for _ in range(5):
            assert served.client.get("/health").status_code == 200
    assert asked.call_count == 1


def test_metrics_are_read_once_for_all_who_ask_within_a_second() -> None:
    served, go_on = Served(STORE), threading.Event()

    def slow(files: Files) -> Any:
        go_on.wait(PATIENCE)
        return of_store(files)

    with mock.patch("persistent_state.serve.app.of_store", side_effect=slow) as asked:
        with served.client, ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(served.client.get, "/metrics") for _ in range(4)]
            go_on.set()
            texts = {answer.result().text for answer in answers}
        assert len(texts) == asked.call_count == 1
        served.now += 1
        served.client.get("/metrics")
        assert asked.call_count == 2


def test_a_page_of_a_store_that_hangs_is_answered_within_the_time_of_one_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, go_on = TwoTasks(), threading.Event()
    for task in "AB":
        world.read(task, {"x": 25}, "x")
    served = Served(world.log.files)
    served.page()

    def hangs(files: Files, *_: Any) -> Any:
        go_on.wait(PATIENCE)
        raise StoreUnavailableError("the store is away; wait for it.")

    monkeypatch.setattr(MemoryFiles, "list", hangs)
    monkeypatch.setattr(MemoryFiles, "read", hangs)

    def soon(workers: Workers) -> float:
        return asyncio.get_running_loop().time() + 0.5

    with mock.patch.object(Workers, "deadline", autospec=True, side_effect=soon) as deadline:
        page = served.page(503, application="app", task="A", word="x")
    # The look, the detail and the look-up each hang, and have one time together.
    assert deadline.call_count == 1
    go_on.set()
    assert page.text.count("the store did not answer within ") == 3
