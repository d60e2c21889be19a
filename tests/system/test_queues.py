"""Queues that lend, reclaim and share on a real control plane, gates and quotas of others, with the controller killed on the way.

Every room is audited when it ends.
"""

from __future__ import annotations

from typing import Any

import pytest

from queuectl.demo import manifests as m
from queuectl.demo.manifests import Document, Pods
from queuectl.domain.quantity import GPU, Resources
from queuectl.localcluster.nodes import KUBELET
from tests.system.acts import (
    ask,
    cohort,
    die,
    reason,
    remove,
    rules,
    until_empty,
    until_reason,
)
from tests.system.house import SECONDS, House, Room

pytestmark = pytest.mark.system
KINDS = ("Job", "PyTorchJob")


def evictions(room: Room, name: str) -> list[dict[str, Any]]:
    """Lines of a workload's history with the reasons of its evictions."""
    return [line for line in room.history(name) if line["toState"] == "Evicting"]


def starts(room: Room, name: str) -> list[dict[str, Any]]:
    return [line for line in room.history(name) if line["event"] == "Admitted"]


def test_what_was_lent_is_reclaimed_and_lent_again(home: House) -> None:
    lent = [f"a{i}" for i in range(4)]
    lender = {"policy": {"reclaimWaitSeconds": 2}}
    borrower = {"policy": {"borrowBackoffSeconds": 0}}
    specs = {"team-a": borrower, "team-b": lender}
    with cohort(home, {"team-a": 32, "team-b": 32}, **specs) as room:
        room.limits[room.namespace, "team-b"] = Resources({GPU: 32})
        for i, name in enumerate(lent):
            room.gang(KINDS[i % 2], name, 2, queue="team-a")
            room.until_state(name, "Running")
        die(room)

        room.gang("PyTorchJob", "b0", 2, queue="team-b")
        until_reason(room, "b0", "Pending", "WaitingToReclaim")
        die(room)
        room.until(lambda: out(room, lent), "a borrower must leave")
        die(room)
        room.until_state("b0", "Running")
        assert len(out(room, lent)) == 1, "it reclaims only the GPUs that it needs"
        room.gang("Job", "b1", 2, queue="team-b")
        room.until_state("b1", "Running")
        die(room)
        room.until(lambda: len(out(room, lent)) == 2, "it takes back the rest")
        room.gang("Job", "b2", 2, queue="team-b")
        until_reason(room, "b2", "Pending", "WaitingForQuota")
        first, second = out(room, lent)  # in the order in which they were submitted
        for name in (first, second):
            until_empty(room, name)
            (line,) = evictions(room, name)
            assert line["reason"]["code"] == "Preempted"
            assert line["reason"]["details"]["why"] == "InCohortReclamation"

        room.audit()
        # From here on jobs are deleted; their quota is free at once, while their last pods still terminate.
        del room.limits[room.namespace, "team-b"]
        # Freed quota is team-b's first, then that of the borrower that queued first.
        for leaves, follows, waits in (("b0", "b2", first), ("b1", first, second)):
            remove(room, leaves)
            die(room)
            room.until_state(follows, "Running")
            assert room.state(waits) == "Pending"
        remove(room, "b2")
        room.until_state(second, "Running")
        assert {n: len(starts(room, n)) for n in lent} == {
            n: 2 if n in (first, second) else 1 for n in lent
        }


def out(room: Room, names: list[str]) -> list[str]:
    """Those of these gangs that were evicted so far."""
    found = room.workloads()
    return [name for name in names if name in found and found[name]["evictions"]]


def test_after_a_burst_each_team_holds_its_share(home: House) -> None:
    """The 96 GPUs of the pool are no team's quota; teams of weight 1, 2 and 3 share them, in any order of arrival."""
    weights = {"one": 1, "two": 2, "three": 3}
    specs = {team: {"fairSharing": {"weight": weight}} for team, weight in weights.items()}
    teams = {"pool": 96} | dict.fromkeys(weights, 0)
    with cohort(home, teams, **specs) as room, rules(room, fairSharing={"enable": True}):
        rush = {"one": 12, "two": 7, "three": 7}
        gangs = {team: [f"{team}{i}" for i in range(count)] for team, count in rush.items()}
        for i, name in enumerate(gangs["one"]):
            room.gang(KINDS[i % 2], name, 2, gpus=4, queue="one")
        for name in gangs["one"]:
            room.until_state(name, "Running")  # alone, it can hold everything
        die(room)
        for i in range(7):
            for team in ("two", "three"):
                room.gang(KINDS[i % 2], gangs[team][i], 2, gpus=4, queue=team)
        room.until(lambda: out(room, gangs["one"]), "the first must leave")
        die(room)
        shares = {"one": 2, "two": 4, "three": 6}

        def held() -> dict[str, int]:
            running = {n for n, w in room.workloads().items() if w["state"] == "Running"}
            return {team: len(running.intersection(names)) for team, names in gangs.items()}

        room.until(lambda: held() == shares, "each holds its share", seconds=2 * SECONDS)
        die(room)
        room.until(room.workloads, "the controller answers")
        evicted = {n: w["evictions"] for n, w in room.workloads().items()}
        assert {w for n in gangs["one"] for w in whys(room, n)} == {"InCohortFairSharing"}
        # The shares are stable: one more of each is refused, without an eviction.
        for team in weights:
            room.gang("Job", f"late-{team}", 2, gpus=4, queue=team)
        for team in weights:
            until_reason(room, f"late-{team}", "Pending", "WaitingForQuota")
        assert held() == shares
        assert {n: w["evictions"] for n, w in room.workloads().items() if n in evicted} == evicted


def whys(room: Room, name: str) -> list[str]:
    """By which rule a workload was preempted, each time."""
    return [str(line["reason"]["details"].get("why")) for line in evictions(room, name)]


def test_a_gang_waits_until_its_gates_are_removed(home: House) -> None:
    gate = "kueue.x-k8s.io/admission-gated-by"
    with home.room(32) as room:
        room.gang("PyTorchJob", "train", 2, annotations={gate: "example.com/data,example.com/paid"})
        until_reason(room, "train", "Held", "AdmissionGated")
        die(room)
        lift(room, gate, "example.com/paid")
        room.until(
            lambda: room.workload("train").get("gates") == ["example.com/paid"], "one gate is left"
        )
        assert reason(room, "train") == ("Held", "AdmissionGated")
        lift(room, gate, None)
        die(room)
        room.until_state("train", "Running")


def lift(room: Room, annotation: str, left: str | None) -> None:
    """Leave these admission gates on the only job of a room."""
    room.client.patch(room.made[0], {"metadata": {"annotations": {annotation: left}}})


def starting(within: int, retries: int | None = None) -> dict[str, Any]:
    """waitForPodsReady: so many seconds for a start, and one of pause after the first failure."""
    strategy = {"backoffBaseSeconds": 1, "backoffLimitCount": retries}
    return {"timeout": f"{within}s", "requeuingStrategy": strategy}


def test_a_failed_start_is_repeated_on_other_nodes(home: House) -> None:
    """One of two free nodes is Ready, but its kubelet does not respond: no pod starts or ends on it."""
    with home.room(128) as room:
        room.job("filler", Pods(14, gpus=8))
        room.until_state("filler", "Running")
        # Pods of an earlier test would never end on a node whose kubelet does not respond.
        room.until(lambda: len(room.client.get("/api/v1/pods")["items"]) == 14, "nobody else")
        bad = min(set(home.cluster.nodes.names()) - {str(p.node) for p in room.running("filler")})
        room.client.patch(f"/api/v1/nodes/{bad}", {"metadata": {"labels": {KUBELET: "stopped"}}})
        try:
            with rules(room, waitForPodsReady=starting(within=4)):
                room.gang("PyTorchJob", "train", 2)
                until_reason(room, "train", "Evicting", "PodsReadyTimeout")
                (late,) = evictions(room, "train")
                assert late["reason"]["details"] == {"cause": "WaitForStart"}
            die(room)
            with rules(room, waitForPodsReady=starting(within=300)):
                remove(room, "filler")
                home.cluster.nodes.cordon(bad)
                home.cluster.nodes.restore(bad)
                room.until(lambda: room.state("train") != "Evicting", "its pods are deleted")
                die(room)
                room.until_state("train", "Running")
        finally:
            home.cluster.nodes.restore(bad)
            home.cluster.nodes.uncordon(bad)
        nodes = {p.node for p in room.running("train")}
        assert len(nodes - {bad}) == 2
        assert [line["attempt"] for line in starts(room, "train")] == [1, 2]
        assert [line["toState"] for line in room.history("train")].count("Backoff") == 1


def test_a_gang_that_never_starts_is_deactivated(home: House) -> None:
    pods = Pods(1, gpus=8, annotations={"kwok.queuectl.dev/start-seconds": "3600"})
    with home.room(32) as room, rules(room, waitForPodsReady=starting(within=3, retries=1)):
        room.submit(m.pytorchjob("never", room.namespace, "main", master=pods, worker=pods))
        room.until(lambda: evictions(room, "never"), "the first start has failed")
        die(room)
        until_reason(room, "never", "Deactivated", "RequeuingLimitExceeded")
        die(room)
        until_empty(room, "never")
        ask(room, "never", "activate")
        room.until(lambda: room.workload("never").get("attempt") == 3, "a third start")
        late = [line["reason"]["code"] for line in evictions(room, "never")]
        assert late[-2:] == ["PodsReadyTimeout", "PodsReadyTimeout"]


def test_a_gang_is_pending_until_its_namespace_has_quota(home: House) -> None:
    with home.room(128) as room:
        room.client.apply(resource_quota(room, 16))
        room.gang("Job", "first", 2)
        room.until_state("first", "Running")
        room.gang("PyTorchJob", "second", 2)
        waits = until_reason(room, "second", "Pending", "ResourceQuotaExceeded")
        assert waits["reason"]["details"]["resourceQuota"] == "team"
        die(room)
        room.gang("Job", "third", 2)
        until_reason(room, "third", "Pending", "ResourceQuotaExceeded")
        assert not room.pods("second"), "nothing of it was started"
        room.client.apply(resource_quota(room, 32))
        die(room)
        room.until_state("second", "Running")
        until_reason(room, "third", "Pending", "ResourceQuotaExceeded")
        remove(room, "first")  # what it used is given back by the quota's own controller
        room.until_state("third", "Running")
        assert [len(starts(room, name)) for name in ("second", "third")] == [1, 1]


def resource_quota(room: Room, gpus: int) -> Document:
    """A ResourceQuota of the room's namespace."""
    meta = {"name": "team", "namespace": room.namespace}
    spec = {"hard": {f"requests.{GPU}": str(gpus)}}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": spec}
