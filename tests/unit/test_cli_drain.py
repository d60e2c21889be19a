"""``queuectl drain`` against a running API: it waits for gangs, or asks for their requeue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from queuectl.cli import drain
from queuectl.cli.ask import ask
from queuectl.cli.client import connect
from queuectl.client import requests
from queuectl.domain.cluster_map import ClusterMap
from queuectl.domain.errors import QueuectlError
from tests.api.serving import serving
from tests.api.support import LIVES, FixedClusterReader, FixedLookout, job, live_through
from tests.api.test_plans import DOCUMENTS, runs, seen
from tests.doubles.store import MemoryStore
from tests.planner.build import gang, holding, node, podset, world
from tests.support.cli import Cli, Result, queuectl_with
from tests.support.counted import map_of

STATE = "nvidia.com/gpu-driver-upgrade-state"


def cluster(
    nodes: Sequence[str] = ("n1", "n2"),
    *,
    held: bool = True,
    cordoned: bool = True,
    leaving: bool = False,
) -> ClusterMap:
    """Nodes whose driver is updated, with one gang, and another node."""
    labels = {STATE: "wait-for-jobs-required"}
    all_nodes = [
        *(replace(node(n, gpu=8, labels=labels), unschedulable=cordoned) for n in nodes),
        node("n3", gpu=8),
    ]
    train = replace(gang("uid-job-train", podset(count=2, gpu=8)), namespace="team-a", name="train")
    admitted = [holding(train, {"n1": 1, "n2": 1}, leaving=leaving)] if held else []
    return map_of(world(all_nodes, [], admitted), {})


class Changing(FixedLookout):
    """Returns each cluster map for two answers, and the last one from then on. None: it does not know the cluster."""

    def __init__(self) -> None:
        super().__init__(None)
        self.answers = 0
        self._maps: tuple[ClusterMap | None, ...] = ()

    def become(self, *maps: ClusterMap | None) -> None:
        self.answers, self._maps = 0, maps

    async def cluster_map(self) -> ClusterMap | None:
        self.answers += 1
        return self._maps[min((self.answers - 1) // 2, len(self._maps) - 1)]


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Changing, str]]:
    store = MemoryStore()
    for change in live_through(job("train"), *LIVES["running"]):
        store._write(change, 1)
    cluster_reader = Changing()
    with serving(store, cluster_reader=cluster_reader) as address:
        yield cluster_reader, address


@pytest.fixture
def cluster_reader(running: tuple[Changing, str]) -> Changing:
    running[0].become(cluster())
    return running[0]


@pytest.fixture
def queuectl(
    running: tuple[Changing, str],
    cluster_reader: Changing,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Cli:
    monkeypatch.setenv("QUEUECTL_SERVER", running[1])
    monkeypatch.setattr(drain, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(drain, "CORDON_SECONDS", 0.2)

    def call(*arguments: str) -> Result:
        return queuectl_with(monkeypatch, capsys, "drain", *arguments)

    return call


def commands(address: str) -> list[Any]:
    with connect(address) as connected:
        items: list[Any] = connected.get("/api/v1/commands")["items"]
        return items


def test_it_ends_when_no_gang_holds_the_nodes(
    queuectl: Cli, cluster_reader: Changing, running: tuple[Changing, str]
) -> None:
    cluster_reader.become(cluster(), cluster(held=False))
    found = queuectl("n1", "n2")
    assert (found.code, found.out.splitlines()) == (
        0,
        ["waits for team-a/train (16 GPUs)", "no gang holds n1, n2"],
    )
    assert commands(running[1]) == []


def test_one_request_in_each_interval_is_for_all_nodes(
    queuectl: Cli, cluster_reader: Changing
) -> None:
    """The first lists the nodes, the second finds the gang, and the third finds none."""
    cluster_reader.become(cluster(), cluster(held=False))
    assert queuectl("n1", "n2").code == 0
    assert cluster_reader.answers == 3


def test_a_node_that_is_deleted_holds_no_gang(queuectl: Cli, cluster_reader: Changing) -> None:
    cluster_reader.become(cluster(), cluster(nodes=("n2",), held=False))
    found = queuectl("n1", "n2")
    assert (found.code, found.out.splitlines()[-1]) == (0, "no gang holds n1, n2")


def test_more_cordoned_nodes_than_a_page_are_listed_page_by_page(
    queuectl: Cli, cluster_reader: Changing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "LARGEST_PAGE", 1)
    cluster_reader.become(cluster(held=False))
    assert queuectl("n1", "n2").out == "no gang holds n1, n2\n"
    assert cluster_reader.answers == 4


def test_nodes_without_gangs_need_no_wait(queuectl: Cli, cluster_reader: Changing) -> None:
    cluster_reader.become(cluster(held=False))
    assert queuectl("n1").out == "no gang holds n1\n"


def test_it_fails_after_its_time_and_names_the_gangs(queuectl: Cli) -> None:
    found = queuectl("n1", "--wait", "200ms")
    assert (found.code, found.err) == (1, "error: gangs are left: team-a/train (8 GPUs)\n")


def test_it_fails_after_its_time_without_names_if_the_server_has_not_answered(
    queuectl: Cli, cluster_reader: Changing
) -> None:
    cluster_reader.become(cluster(), None)  # the two answers name the nodes
    found = queuectl("n1", "-l", f"{STATE}=wait-for-jobs-required", "--wait", "0")
    assert found.code == 1
    assert found.err.endswith(
        "error: the server did not answer: it is unknown which gangs are left\n"
    )


def test_a_selector_finds_the_nodes(queuectl: Cli) -> None:
    found = queuectl("-l", f"{STATE}=wait-for-jobs-required", "--wait", "0")
    assert found.err == "error: gangs are left: team-a/train (16 GPUs)\n"
    nothing = queuectl("-l", f"{STATE}=upgrade-done")
    assert (nothing.code, nothing.out) == (0, "no cordoned node has these labels\n")


def test_a_gang_that_leaves_is_not_asked_again(
    queuectl: Cli, cluster_reader: Changing, running: tuple[Changing, str]
) -> None:
    cluster_reader.become(cluster(leaving=True))
    assert queuectl("n1", "--move", "--wait", "200ms").code == 1
    assert commands(running[1]) == []


def test_a_gang_has_time_to_finish_before_it_is_moved(
    queuectl: Cli, running: tuple[Changing, str]
) -> None:
    assert queuectl("n1", "--move", "--after", "1h", "--wait", "200ms").code == 1
    assert commands(running[1]) == []


def test_move_asks_for_one_requeue_of_each_gang(
    queuectl: Cli, cluster_reader: Changing, running: tuple[Changing, str]
) -> None:
    cluster_reader.become(cluster(), cluster(held=False))
    found = queuectl("n1", "n2", "--move", "--by", "ann", "--reason", "new driver")
    assert (found.code, found.out.splitlines()[1:]) == (
        0,
        ["job/team-a/train: requeue requested", "no gang holds n1, n2"],
    )
    asked = [(each["action"], each["by"], each["why"]) for each in commands(running[1])]
    assert asked == [("requeue", "ann", "new driver")]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "no node given: name nodes, or use --selector"),
        (("n1", "--after", "1h"), 2, "--after needs --move"),
        (("n1", "--wait", "soon"), 2, "--wait: 'soon' is not a duration like 30s, 5m or 1h30m"),
        (("n1", "n3"), 4, "not cordoned: n3; run kubectl cordon n3"),
        (("gone",), 3, "node gone does not exist"),
    ],
)
def test_a_wrong_request_is_refused(
    queuectl: Cli, arguments: tuple[str, ...], code: int, message: str
) -> None:
    found = queuectl(*arguments)
    assert (found.code, found.err) == (code, f"error: {message}\n")


def test_a_node_that_the_controller_observes_as_cordoned_later_is_drained(
    queuectl: Cli, cluster_reader: Changing
) -> None:
    cluster_reader.become(cluster(cordoned=False), cluster(held=False))
    assert queuectl("n1").out == "no gang holds n1\n"


def test_it_ends_when_a_node_takes_pods_again(queuectl: Cli, cluster_reader: Changing) -> None:
    cluster_reader.become(cluster(), cluster(cordoned=False))
    found = queuectl("n1")
    assert (found.code, found.err) == (4, "error: n1 was uncordoned\n")


def test_a_server_that_does_not_answer_for_a_time_ends_no_drain(
    queuectl: Cli, cluster_reader: Changing
) -> None:
    cluster_reader.become(cluster(), None, cluster(held=False))
    found = queuectl("n1")
    assert (found.code, found.out.splitlines()[-1]) == (0, "no gang holds n1")
    assert "the command continues" in found.err


def test_a_requeue_that_the_server_does_not_answer_is_sent_again(
    queuectl: Cli,
    cluster_reader: Changing,
    running: tuple[Changing, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = [QueuectlError("no answer")]

    def failing(*arguments: Any) -> None:
        if failures:
            raise failures.pop()
        ask(*arguments)

    monkeypatch.setattr(drain, "ask", failing)
    cluster_reader.become(cluster(), cluster(), cluster(), cluster(held=False))
    found = queuectl("n1", "--move")
    assert (found.code, found.out.splitlines()[-1]) == (0, "no gang holds n1")
    assert "no answer; the command continues" in found.err
    assert "requeue requested" in found.out


def test_a_dry_run_shows_the_plan_without_the_nodes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = MemoryStore()
    for document in DOCUMENTS:
        asyncio.run(store.put_config(document))
    snapshot = seen(runs("a", "n0", "n1"))
    nodes = [replace(each, unschedulable=each.name == "n0") for each in snapshot.fleet.nodes]
    snapshot = replace(snapshot, fleet=replace(snapshot.fleet, nodes=tuple(nodes)))
    with serving(store, cluster_reader=FixedClusterReader(snapshot, store)) as address:
        found = queuectl_with(
            monkeypatch, capsys, "drain", "n0", "--move", "--dry-run", "--server", address
        )
    assert found.code == 0
    assert "default/a" in found.out
    assert "repaired" in found.out
