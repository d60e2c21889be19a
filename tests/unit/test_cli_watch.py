"""``get`` for nodes, events and decisions, tables on narrow terminals, and ``--watch``."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import partial
from itertools import islice
from typing import Any

import httpx2
import pytest

from queuectl.api import feed as encoding
from queuectl.cli import events, get
from queuectl.cli.client import connect, workloads
from queuectl.cli.columns import WORKLOAD_COLUMNS
from queuectl.cli.render import Column, GrowingTable, emit_table, expected
from queuectl.client import Client, ClientError, http, requests, stream
from queuectl.client.stream import StreamEvent
from queuectl.domain.pastuse import AccountScope, PastUseAccount, Used
from queuectl.domain.queries import UnmanagedPod
from tests.api.serving import NotifyingStore, serving
from tests.api.support import (
    CLUSTER_QUEUE,
    CONFIGURATION,
    LIVES,
    LOCAL_QUEUE,
    FixedLookout,
    job,
    live_through,
)
from tests.doubles.store import MemoryDatabase, MemoryStore
from tests.planner.build import gang, holding, node, podset, world
from tests.support.cli import Cli, queuectl_with
from tests.support.counted import map_of

FLOOR = map_of(
    world([node("n0", "r0", gpu=8), node("n1", "r1", gpu=8)], [], [
        holding(gang("train", podset(count=1, gpu=4)), {"n1": 1}),
    ]),
    {},
)  # fmt: skip


HELD = (
    UnmanagedPod("team-a", "notebook", "n0", Fraction(2), 1_700_000_000.0),
    UnmanagedPod("team-a", "starts", "n0", Fraction(1), None),
    UnmanagedPod("team-b", "debug", "n1", Fraction(1, 2), 1_700_000_000.0),
)


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[MemoryStore, str]]:
    store = NotifyingStore()
    with serving(store, cluster_reader=FixedLookout(FLOOR, held=HELD)) as address:
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


def test_nodes_are_listed_with_free_gpus_and_gangs(queuectl: Cli) -> None:
    header, first, second = queuectl("get", "nodes").out.splitlines()
    assert header.split() == ["NAME", "STATUS", "GPUS", "FREE", "WORKLOADS"]
    assert first.split() == ["n0", "Ready", "8", "8", "-"]
    assert second.split()[:4] == ["n1", "Ready", "8", "4"]
    assert "/train (4)" in second
    assert queuectl("get", "node", "n1", "-o", "name").out == "node/n1\n"
    assert queuectl("get", "node", "n7").code == 3


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--free", "8"], ["n0"]),
        (["--domain", "rack=r1"], ["n1"]),
        (["--domain", "rack=r1", "--free", "8"], []),
        (["--search", "train"], ["n1"]),
        (["--free", "0"], ["n0", "n1"]),
    ],
)
def test_nodes_are_filtered_by_free_gpus_by_domain_and_by_name(
    queuectl: Cli, options: list[str], names: list[str]
) -> None:
    found = queuectl("get", "nodes", *options, "-o", "name").out.splitlines()
    assert found == [f"node/{name}" for name in names]


def test_domains_are_listed_with_free_gpus_and_the_largest_free_node(queuectl: Cli) -> None:
    header, *rows = queuectl("get", "domains").out.splitlines()
    assert header.split() == [
        "TOPOLOGY", "DOMAIN", "LEVEL", "NODES", "GPUS", "FREE", "LARGEST", "FREE", "WORKLOADS", "USE",
    ]  # fmt: skip
    racks = {row.split()[1]: row.split() for row in rows if row.split()[2] == "rack"}
    assert racks["b/r0"][3:] == ["1", "8", "8", "n0", "(8)", "0", "-"]
    assert racks["b/r1"][3:] == ["1", "8", "4", "n1", "(4)", "1", "-"]
    assert "FRAGMENTED" in queuectl("get", "domains", "-o", "wide").out
    (layout,) = json.loads(queuectl("get", "domains", "-o", "json").out)["items"]
    names = queuectl("get", "domain", layout["topology"], "-o", "name").out.split()
    assert names == [
        "/".join(["domain", layout["topology"], *d["path"]]) for d in layout["domains"]
    ]
    assert queuectl("get", "domains", "nowhere").code == 3


def test_past_use_is_listed_by_queue_and_user_with_shares(
    queuectl: Cli, store: MemoryStore
) -> None:
    rules = {**CONFIGURATION, "admissionFairSharing": {"usageHalfLifeTime": "100s"}}
    other = {**LOCAL_QUEUE, "metadata": {"name": "other", "namespace": "team-a"}}
    for document in (rules, CLUSTER_QUEUE, LOCAL_QUEUE, other):
        asyncio.run(store.put_config(document))
    own = [PastUseAccount.of_local_queue("team-a", name) for name in ("default", "other")]
    used = [Used(own[0], 9.0, {"nvidia.com/gpu": 6.0}), Used(own[1], 9.0, {"nvidia.com/gpu": 2.0})]
    used.append(Used(PastUseAccount(AccountScope.USER, "ann"), 9.0, {"nvidia.com/gpu": 0.5}))
    asyncio.run(store.put_config(other, None, used))
    header, *rows = queuectl("get", "pastuse").out.splitlines()
    titles = ["SCOPE", "NAMESPACE", "NAME", "CLUSTERQUEUE", "USAGE", "SHARE", "RESOURCES"]
    assert header.split() == titles
    assert sorted(row.split() for row in rows) == [
        ["LocalQueue", "team-a", "default", "team-a", "6", "75%", "6", "nvidia.com/gpu"],
        ["LocalQueue", "team-a", "other", "team-a", "2", "25%", "2", "nvidia.com/gpu"],
        ["User", "-", "ann", "-", "0.5", "100%", "0.5", "nvidia.com/gpu"],
    ]
    names = queuectl("get", "pastuse", "-o", "name").out.split()
    assert set(names) == {
        "pastuse/LocalQueue/team-a/default", "pastuse/LocalQueue/team-a/other", "pastuse/User/ann",
    }  # fmt: skip


def test_unmanaged_pods_are_listed_below_the_sums_of_their_namespaces(
    queuectl: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "LARGEST_PAGE", 1)
    sums, pods = queuectl("get", "unmanaged").out.split("\n\n")
    assert [row.split() for row in sums.splitlines()] == [
        ["NAMESPACE", "PODS", "GPUS"],
        ["team-a", "2", "3"],
        ["team-b", "1", "0.5"],
    ]
    header, first, second, third = (row.split() for row in pods.splitlines())
    assert header == ["POD", "NODE", "GPUS", "FOR"]
    assert first[:3] == ["team-a/notebook", "n0", "2"]
    assert second == ["team-a/starts", "n0", "1", "-"]
    assert third[:3] == ["team-b/debug", "n1", "0.5"]
    assert "2023-11-14T22:13:20Z" in queuectl("get", "unmanaged", "-o", "wide").out
    mine = queuectl("get", "unmanaged", "-n", "team-b", "-o", "name")
    assert mine.out == "pod/team-b/debug\n"
    body = json.loads(queuectl("get", "unmanaged", "-n", "team-a", "-o", "json").out)
    assert body["namespaces"] == [{"namespace": "team-a", "pods": 2, "gpus": 3.0}]
    assert [item["name"] for item in body["items"]] == ["notebook", "starts"]
    assert queuectl("get", "unmanaged", "-n", "team-c").err == "no objects found\n"


def test_an_empty_list_of_decisions_is_not_an_error(queuectl: Cli) -> None:
    assert queuectl("get", "decisions").err == "no objects found\n"


def test_events_are_the_newest_steps_oldest_first(queuectl: Cli, store: MemoryStore) -> None:
    live(store, "running", "held")
    rows = [line.split() for line in queuectl("get", "events").out.splitlines()]
    assert rows[0][:3] == ["TIME", "WORKLOAD", "EVENT"]
    assert [row[1].partition("/")[2] for row in rows[1:]] == ["running"] * 3 + ["held"] * 2
    assert len(queuectl("get", "events", "--last", "2", "-o", "name").out.splitlines()) == 2
    body = json.loads(queuectl("get", "events", "-n", "team-a", "-o", "json").out)
    assert [item["toState"] for item in body["items"]][:3] == ["Pending", "Starting", "Running"]
    none = "namespace team-b has no LocalQueue: is the name right?\nno objects found\n"
    assert queuectl("get", "events", "-n", "team-b").err == none


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["cq", "--watch"], "--watch is for lists of workloads and events"),
        (["wl", "x", "--watch"], "--watch is for lists"),
        (["nodes", "--queue", "x"], "--queue is for lists of workloads"),
        (["events", "--state", "Running"], "--state is for lists of workloads and commands"),
        (["nodes", "--user", "alice"], "--user is for lists of workloads"),
        (["wl", "x", "--sort", "gpus"], "--sort is for lists of workloads"),
        (["wl", "--by", "alice"], "--by is for lists of commands"),
        (["commands", "team-a/train", "--by", "alice"], "--by is for lists of commands"),
        (["commands", "--kind", "Job"], "--kind is for workloads, and for the commands"),
        (["cq", "--cluster-queue", "x"], "--cluster-queue is for lists of workloads and events"),
        (["wl", "--free", "8"], "--free is for lists of nodes"),
        (["node", "n0", "--free", "0"], "--free is for lists of nodes"),
        (["domains", "--domain", "rack=r1"], "--domain is for lists of nodes"),
        (["nodes", "--kind", "Job"], "--kind is for workloads, and for the commands"),
        (["pastuse", "default"], "pastuse: lists all entries"),
        (["unmanaged", "notebook"], "lists all pods"),
        (["events", "train"], "queuectl history train"),
        (["wl", "-A", "-n", "x"], "--all-namespaces excludes"),
        (
            ["pods"],
            "use `kubectl get pods`",
        ),
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
def test_a_watch_shows_the_list_then_changes(
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
            live(store, "held", namespace="team-b")  # outside the filter
            live(store, "starting")
            assert "team-b" not in wait_for("starting", seen)
        finally:
            watching.terminate()


@pytest.mark.parametrize(
    ("filters", "shown"),
    [
        ({}, ["held"]),
        ({"kind": "Job"}, ["held"]),
        ({"kind": "PyTorchJob"}, []),
        ({"queue": "other"}, []),
        ({"state": ["Held"]}, ["held"]),
        ({"state": ["Running"]}, []),
    ],
)
def test_a_watch_shows_only_changes_that_match_the_filters(
    address: str, store: MemoryStore, filters: dict[str, object], shown: list[str]
) -> None:
    live(store, "held")
    with connect(address) as client:
        found = get._still(client, ["uid-job-held", "uid-of-nobody"], filters)
    assert [item["name"] for item in found] == shown


@dataclass
class Watch:
    """The lines that a watch of workloads prints, and the workloads that it reads from lists, by name and in order."""

    printed: list[list[str]]
    read: list[str]


@pytest.fixture
def watch(
    address: str, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Watch]:
    """Watches until these events have come, all at once."""

    def watched(*blocks: StreamEvent, **filters: Any) -> Watch:
        seen = Watch([], [])

        def read(client: Client, **query: Any) -> Iterator[Any]:
            for item in workloads(client, **query):
                seen.read.append(item["name"])
                yield item

        def show(items: Iterable[Any]) -> None:
            seen.printed.append([item["name"] for item in items])

        monkeypatch.setattr(get, "workloads", read)
        monkeypatch.setattr(events, "gathered", iter)
        with connect(address) as client:
            monkeypatch.setattr(client, "watch", lambda *_, **__: [blocks])
            get.watch_workloads(client, show, **filters)
        return seen

    return watched


RESET = StreamEvent(1, "reset", {})


@pytest.mark.parametrize(
    ("filters", "listed"),
    [
        ({}, ["pending"]),
        ({"every": True}, ["finished", "pending"]),
        ({"state": ["Finished"]}, ["finished"]),
    ],
)
def test_a_watch_lists_the_same_workloads_again_after_the_database_was_restored(
    store: MemoryStore, watch: Callable[..., Watch], filters: dict[str, Any], listed: list[str]
) -> None:
    live(store, "pending", "finished")
    assert list(map(sorted, watch(RESET, **filters).printed)) == [listed, listed]


NEW = [f"new-{n}" for n in range(10, 40)]


@pytest.mark.parametrize(
    ("filters", "changed"),
    [
        ({}, [*NEW, "now"]),
        ({"label_selector": "!none"}, [*NEW, "now"]),
        ({"state": ["Finished"]}, ["now"]),
        ({"state": ["Pending"]}, NEW),
    ],
)
def test_many_changes_are_shown_without_a_read_of_all_workloads_that_finished_before(
    store: MemoryStore, watch: Callable[..., Watch], filters: dict[str, Any], changed: list[str]
) -> None:
    before = [f"old-{n}" for n in range(10)]
    lives = [
        *((job(name), LIVES["finished"]) for name in before),
        (job("now", at=1000.0), LIVES["finished"]),
        *((job(name, at=1000.0), LIVES["pending"]) for name in NEW),
    ]
    for change in (change for record, life in lives for change in live_through(record, *life)):
        store._write(change, 1)
    at = datetime.fromtimestamp(1000.0, UTC).isoformat()
    steps = [StreamEvent(1, "step", {"uid": f"uid-job-{name}", "at": at}) for name in ("now", *NEW)]
    seen = watch(*steps, **filters)
    first, then = seen.printed
    assert sorted(then) == changed
    assert len(set(seen.read[len(first) :]) & set(before)) <= 1  # one shows that no other follows


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
        return httpx2.Response(200, text=script, headers={"Content-Type": "text/event-stream"})

    def client(self) -> Client:
        return Client("http://127.0.0.1", transport=httpx2.MockTransport(self), retries=0)


STEP = {"id": 6, "uid": "u1", "toState": "Running", "at": "2026-01-01T00:00:00Z"}
TRAIN = {
    "uid": "u1",
    "kind": "Job",
    "namespace": "a",
    "name": "train",
    "queue": "main",
    "user": "ann",
    "reason": {"message": "m"},
}


class Flickering:
    """A server with one gang, which runs at the first step. It is not available for each second read, apart from streams."""

    def __init__(self) -> None:
        self.reads = 0

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if path.endswith("/events"):
            if request.url.params.get("after") == "6":
                raise KeyboardInterrupt  # the user has seen the step
            follows = "after" in request.url.params
            text = encoding.opening(5) + (encoding.step(6, json.dumps(STEP)) if follows else "")
            return httpx2.Response(200, text=text, headers={"Content-Type": "text/event-stream"})
        self.reads += 1
        if self.reads % 2 == 0:
            return httpx2.Response(503, json={"detail": "flickers"}, headers={"Retry-After": "0"})
        if path.endswith(("s", "/queueuse")):
            return httpx2.Response(200, json={"items": [], "nextCursor": None})
        state = "Running" if self.reads > 1 else "Pending"
        return httpx2.Response(200, json={**TRAIN, "state": state})


@pytest.mark.parametrize(
    ("words", "shows"),
    [
        ("wait a/train", "job/a/train is Running: m\n"),
        ("get workloads -w -o name", "job/a/train\n"),
        ("top --once", ""),
    ],
)
def test_a_command_that_runs_long_survives_a_server_that_is_not_available_for_a_moment(
    words: str, shows: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, transport = http.sync_client, httpx2.MockTransport(Flickering())
    monkeypatch.setattr(
        http, "sync_client", lambda given, seconds, _: made(given, seconds, transport)
    )
    monkeypatch.setattr(stream, "RETRY_SECONDS", 0)
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    result = queuectl_with(monkeypatch, capsys, *words.split())
    assert result.out == shows, result.err
    assert "flickers" not in result.err


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "RETRY_SECONDS", 0)


def step(number: int) -> str:
    return encoding.step(number, json.dumps({"uid": f"u{number}"}))


@pytest.mark.usefixtures("_impatient")
class TestFollowing:
    @pytest.mark.parametrize(
        ("scripts", "ids", "asked"),
        [
            pytest.param(
                [encoding.opening(5) + step(6) + step(7)], [6, 7], ["5"], id="steps as they come"
            ),
            pytest.param(
                [encoding.opening(5) + step(6), encoding.opening(6) + step(7)],
                [6, 7],
                ["5", "6"],
                id="a broken stream continues",
            ),
            pytest.param(
                [encoding.opening(5) + encoding.heartbeat(9), "broken", step(10)],
                [10],
                ["5", "9", "9"],
                id="also over an outage, from the last sign of life",
            ),
            pytest.param(
                [step(6) + encoding.cut(6), step(7)],
                [6, 7],
                ["5", "6"],
                id="a closed stream continues",
            ),
            pytest.param(
                [encoding.reset(2), step(3)], [2, 3], ["5", "2"], id="the history was replaced"
            ),
        ],
    )
    def test_nothing_is_lost(
        self, scripts: Sequence[str], ids: list[int], asked: list[str]
    ) -> None:
        server = Scripted(*scripts)
        received = list(islice(server.client().watch(5), len(ids)))
        assert ([block.id for block in received], server.asked) == (ids, asked)

    def test_a_refusal_is_raised_at_once(self) -> None:
        with pytest.raises(ClientError, match="no"):
            next(Scripted(403).client().watch(5))

    def test_a_server_without_an_answer_is_an_error_after_a_minute(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stream, "OUTAGE_SECONDS", -1)
        with pytest.raises(ClientError, match="no answer from"):
            next(Scripted("broken").client().watch(5))

    def test_pending_events_are_one_batch_and_errors_are_raised_after_it(self) -> None:
        handfuls = events.gathered(Scripted(step(6) + step(7), 403).client().watch(5))
        found: list[int] = []
        with pytest.raises(ClientError, match="no"):
            found.extend(block.id for handful in handfuls for block in handful)
        assert found == [6, 7]


NAMES = Column("NAME", lambda o: o["name"])
KINDS = Column("KIND", lambda o: o["kind"], spare=2)
REASONS = Column("REASON", lambda o: o["reason"], spare=1)
TEXTS = Column("MESSAGE", lambda o: o["text"], long=True)
ROW = {"name": "a-rather-long-name-of-a-job", "kind": "PyTorchJob", "reason": "Waiting",
       "text": "it waits for " + "a long time " * 6}  # fmt: skip

OnTerminal = Callable[..., tuple[str, str, str]]


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> OnTerminal:
    """Prints a table of one row on a color terminal; its titles and its row without colors, and the messages."""

    def printed(
        columns: Sequence[Column], row: dict[str, object], *, width: int, wide: bool
    ) -> tuple[str, str, str]:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
        emit_table(columns, [row], wide=wide)
        captured = capsys.readouterr()
        header, line = re.sub(r"\x1b\[[0-9;]*m", "", captured.out).splitlines()
        return header, line, captured.err

    return printed


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (200, ["NAME", "KIND", "REASON", "MESSAGE"]),
        (125, ["NAME", "KIND", "REASON", "MESSAGE"]),
        (80, ["NAME", "REASON", "MESSAGE"]),
        (60, ["NAME", "MESSAGE"]),
    ],
)
def test_a_terminal_shows_the_columns_that_fit_and_complete_names(
    width: int, titles: list[str], on_terminal: OnTerminal
) -> None:
    columns = [NAMES, KINDS, REASONS, TEXTS]
    header, row, messages = on_terminal(columns, ROW, width=width, wide=False)
    assert header.split() == titles
    assert len(row) <= width
    assert ROW["name"] in row
    assert ("…" in row) == (width < 200)
    assert ("lack of width: KIND" in messages) == (width < 100)


def test_a_pipe_has_all_columns_without_colors(
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


def test_later_rows_stay_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    rows = GrowingTable([NAMES, KINDS], wide=False)
    rows.add([{"name": "long-name", "kind": "Job"}])
    rows.add([{"name": "b", "kind": "Job"}])
    assert capsys.readouterr().out.splitlines() == [
        "NAME        KIND",
        "long-name   Job",
        "b           Job",
    ]


SOON = {
    name: (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat()
    for name, minutes in (("median", 45), ("p90", 90))
}
PENDING = {
    "namespace": "team-a", "name": "train-resnet50-x7k2", "kind": "PyTorchJob", "queue": "training",
    "priority": 1000, "gpus": 128, "pods": 16, "state": "Pending", "positionInClusterQueue": 12,
    "positionInLocalQueue": 3, "queuedAt": None, "since": None, "clusterQueue": "team-a", "attempt": 0,
    "evictions": 0, "use": None, "uid": "8c2f1a3e-55a7-4a2c-9d57-0b0d3d0f4e11", "expectedStart": SOON,
    "plannedStart": None,
    "reason": {"code": "WaitingForQuota", "message": "16 more nvidia.com/gpu of flavor h100 are needed " * 2},
}  # fmt: skip


def test_a_wide_list_has_all_columns_on_a_narrow_terminal(on_terminal: OnTerminal) -> None:
    header, row, messages = on_terminal(WORKLOAD_COLUMNS, PENDING, width=80, wide=True)
    assert re.split("  +", header.strip()) == [column.title for column in WORKLOAD_COLUMNS]
    assert not messages
    assert str(PENDING["uid"]) in row
    assert "are needed 16 more" in row


def test_an_expected_start_is_the_range_from_the_median_to_the_90th_percentile() -> None:
    now = datetime(2026, 11, 23, 19, 0, tzinfo=UTC)
    later = "2026-11-23T19:45:00Z"
    start = {"median": "2026-11-23T19:20:00Z", "p90": later}
    assert expected(start, now) == "20m-45m"
    assert expected({**start, "p90": None}, now) == "20m-unknown"
    assert expected({"median": later, "p90": later}, now) == "45m"
    assert expected(None, now) == ""


@pytest.mark.parametrize(
    ("passed", "shown"), [(15, "5m-30m"), (21, "0s-24m"), (43, "0s-2m"), (46, "overdue")]
)
def test_an_expected_start_is_overdue_once_its_90th_percentile_has_passed(
    passed: int, shown: str
) -> None:
    now = datetime(2026, 11, 23, 19, passed, tzinfo=UTC)
    start = {"median": "2026-11-23T19:20:00Z", "p90": "2026-11-23T19:45:00Z"}
    assert expected(start, now) == shown
    assert expected({**start, "p90": None}, now) != "overdue"
