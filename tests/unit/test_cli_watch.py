"""``get`` beyond configuration: nodes, events, decisions, tables on narrow terminals, and watching."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

import httpx2
import pytest

from queuectl.api import events as told
from queuectl.cli import events
from queuectl.cli.client import Client
from queuectl.cli.errors import CommandFailed
from queuectl.cli.render import Column, Rows, emit_table
from queuectl.planner.floor import floor_of
from tests.api.serving import serving
from tests.api.support import LIVES, FixedLookout, job, live_through
from tests.doubles.store import MemoryDatabase, MemoryStore
from tests.planner.build import gang, holding, node, podset, world
from tests.support.cli import Cli, queuectl_with

FLOOR = floor_of(
    world([node("n0", "r0", gpu=8), node("n1", "r1", gpu=8)], [], [
        holding(gang("train", podset(count=1, gpu=4)), {"n1": 1}),
    ]),
    {},
)  # fmt: skip


class TellingStore(MemoryStore):
    """Tells of lines that are written from another thread, too."""

    async def history_grown(self, after: int, *, poll: float = 0.01) -> None:
        while await self.newest_line() <= after:  # noqa: ASYNC110 - an Event is of one thread
            await asyncio.sleep(poll)


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[MemoryStore, str]]:
    store = TellingStore()
    with serving(store, lookout=FixedLookout(FLOOR)) as address:
        yield store, address


@pytest.fixture
def store(running: tuple[MemoryStore, str]) -> MemoryStore:
    running[0].database = MemoryDatabase()
    return running[0]


@pytest.fixture
def address(running: tuple[MemoryStore, str], store: MemoryStore) -> str:
    return running[1]


@pytest.fixture
def queuectl(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Cli:
    monkeypatch.setenv("QUEUECTL_SERVER", address)
    monkeypatch.setenv("KUBECONFIG", "/nowhere")

    return partial(queuectl_with, monkeypatch, capsys)


def live(store: MemoryStore, *names: str, namespace: str = "team-a") -> None:
    for name in names:
        for change in live_through(job(name, namespace=namespace), *LIVES[name]):
            store._write(change, 1)


def test_nodes_say_what_is_free_and_who_is_there(queuectl: Cli) -> None:
    header, first, second = queuectl("get", "nodes").out.splitlines()
    assert header.split() == ["NAME", "STATUS", "GPUS", "FREE", "WORKLOADS"]
    assert first.split() == ["n0", "Ready", "8", "8", "-"]
    assert second.split()[:4] == ["n1", "Ready", "8", "4"]
    assert "/train (4)" in second
    assert queuectl("get", "node", "n1", "-o", "name").out == "node/n1\n"
    assert queuectl("get", "node", "n7").code == 3


def test_decisions_can_be_listed_where_there_are_none(queuectl: Cli) -> None:
    assert queuectl("get", "decisions").err == "nothing found\n"


def test_events_are_the_newest_steps_oldest_first(queuectl: Cli, store: MemoryStore) -> None:
    live(store, "running", "held")
    rows = [line.split() for line in queuectl("get", "events").out.splitlines()]
    assert rows[0][:3] == ["TIME", "WORKLOAD", "EVENT"]
    assert [row[1].partition("/")[2] for row in rows[1:]] == ["running"] * 3 + ["held"] * 2
    assert len(queuectl("get", "events", "--last", "2", "-o", "name").out.splitlines()) == 2
    body = json.loads(queuectl("get", "events", "-n", "team-a", "-o", "json").out)
    assert [item["toState"] for item in body["items"]][:3] == ["Pending", "Starting", "Running"]
    assert queuectl("get", "events", "-n", "team-b").err == "nothing found\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["cq", "--watch"], "--watch is for lists of workloads and of events"),
        (["wl", "x", "--watch"], "--watch is for lists"),
        (["nodes", "--queue", "x"], "choose among workloads"),
        (["events", "--state", "Running"], "choose among workloads"),
        (["events", "train"], "queuectl history train"),
        (["wl", "-A", "-n", "x"], "neither a name nor --namespace"),
        (["pods"], "there are workloads, nodes, events, decisions, clusterqueues"),
    ],
)
def test_options_that_would_have_no_effect_are_refused(
    queuectl: Cli, arguments: list[str], says: str
) -> None:
    result = queuectl("get", *arguments)
    assert result.code == 2
    assert says in result.err


@pytest.mark.parametrize(
    ("kind", "form"), [("workloads", "name"), ("workloads", "json"), ("events", "yaml")]
)
def test_watching_shows_what_is_there_then_what_changes(
    address: str, store: MemoryStore, kind: str, form: str
) -> None:
    live(store, "pending")
    code = f"import sys; sys.argv = ['queuectl', 'get', {kind!r}, '-w', '-o', {form!r}, '-n', 'team-a']"
    program = [sys.executable, "-c", f"{code}; from queuectl.cli.main import run; run()"]
    environment = {**os.environ, "QUEUECTL_SERVER": address, "KUBECONFIG": "/nowhere"}
    with subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        seen = iter(watching.stdout)
        try:
            wait_for("pending", seen)
            live(store, "held", namespace="team-b")  # which nobody asked for
            live(store, "starting")
            assert "team-b" not in wait_for("starting", seen)
        finally:
            watching.terminate()


def wait_for(word: str, lines: Iterator[str]) -> str:
    """All until the line with this word."""
    found = ""
    for line in lines:
        found += line
        if word in line:
            return found
    raise AssertionError(f"{word} never came: {found}")


class Scripted:
    """A server that answers each request for the stream with the next script, and breaks off after it."""

    def __init__(self, *scripts: str | int) -> None:
        self.scripts = list(scripts)
        self.asked: list[str | None] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request.url.params.get("after"))
        script = self.scripts.pop(0)
        if isinstance(script, int):
            return httpx2.Response(script, json={"detail": "no"})
        if script == "broken":
            raise httpx2.ConnectError("refused")
        return httpx2.Response(200, text=script)

    def client(self) -> Client:
        transport = httpx2.MockTransport(self)
        return Client(httpx2.Client(transport=transport, base_url="http://127.0.0.1"))


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "RETRY_SECONDS", 0)


def step(number: int) -> str:
    return told.step(number, json.dumps({"uid": f"u{number}"}))


@pytest.mark.usefixtures("_impatient")
class TestFollowing:
    @pytest.mark.parametrize(
        ("scripts", "ids", "asked"),
        [
            pytest.param(
                [told.opening(5) + step(6) + step(7)], [6, 7], ["5"], id="steps as they come"
            ),
            pytest.param(
                [told.opening(5) + step(6), told.opening(6) + step(7)],
                [6, 7],
                ["5", "6"],
                id="a stream that broke is told on",
            ),
            pytest.param(
                [told.opening(5) + told.heartbeat(9), "broken", step(10)],
                [10],
                ["5", "9", "9"],
                id="also over an outage, from the last sign of life",
            ),
            pytest.param(
                [step(6) + told.cut(6), step(7)], [6, 7], ["5", "6"], id="who was cut off asks on"
            ),
            pytest.param([told.reset(2), step(3)], [2, 3], ["5", "2"], id="history began anew"),
        ],
    )
    def test_nothing_is_lost(
        self, scripts: Sequence[str], ids: list[int], asked: list[str]
    ) -> None:
        server = Scripted(*scripts)
        heard = list(islice(events.follow(server.client(), 5), len(ids)))
        assert ([block.id for block in heard], server.asked) == (ids, asked)

    def test_a_refusal_is_told_at_once(self) -> None:
        with pytest.raises(CommandFailed, match="no"):
            next(events.follow(Scripted(403).client(), 5))

    def test_a_server_that_stays_away_is_told_in_the_end(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(events, "PATIENCE_SECONDS", -1)
        with pytest.raises(CommandFailed, match="no answer from"):
            next(events.follow(Scripted("broken").client(), 5))

    def test_what_came_meanwhile_is_taken_together_and_errors_come_after_it(self) -> None:
        handfuls = events.gathered(events.follow(Scripted(step(6) + step(7), 403).client(), 5))
        found: list[int] = []
        with pytest.raises(CommandFailed, match="no"):
            found.extend(block.id for handful in handfuls for block in handful)
        assert found == [6, 7]


NAMES = Column("NAME", lambda o: o["name"])
KINDS = Column("KIND", lambda o: o["kind"], spare=2)
REASONS = Column("REASON", lambda o: o["reason"], spare=1)
TEXTS = Column("MESSAGE", lambda o: o["text"], long=True)
ROW = {"name": "a-rather-long-name-of-a-job", "kind": "PyTorchJob", "reason": "Waiting",
       "text": "it waits for " + "a long time " * 6}  # fmt: skip


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (200, ["NAME", "KIND", "REASON", "MESSAGE"]),
        (125, ["NAME", "REASON", "MESSAGE"]),
        (60, ["NAME", "MESSAGE"]),
    ],
)
def test_a_terminal_gets_the_columns_that_fit_and_whole_names(
    width: int,
    titles: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    emit_table([NAMES, KINDS, REASONS, TEXTS], [ROW], wide=False)
    captured = capsys.readouterr()
    header, row = re.sub(r"\x1b\[[0-9;]*m", "", captured.out).splitlines()
    assert header.split() == titles
    assert len(row) <= width
    assert ROW["name"] in row
    assert ("…" in row) == (width < 100)
    assert ("too narrow for KIND" in captured.err) == (width < 200)


def test_a_pipe_gets_everything_and_no_colours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    emit_table([NAMES, KINDS, REASONS, TEXTS], [{**ROW, "reason": "Running"}], wide=False)
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAME", "KIND", "REASON", "MESSAGE"]
    assert str(ROW["text"]).strip() in row
    assert "\x1b" not in row


def test_rows_that_come_later_stay_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    rows = Rows([NAMES, KINDS], wide=False)
    rows.add([{"name": "long-name", "kind": "Job"}])
    rows.add([{"name": "b", "kind": "Job"}])
    assert capsys.readouterr().out.splitlines() == [
        "NAME        KIND",
        "long-name   Job",
        "b           Job",
    ]
