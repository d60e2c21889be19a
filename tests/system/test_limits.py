"""Limits of namespaces and users, and drained queues, on a real control plane; ``queuectl plan -f`` predicts the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from queuectl.cli.main import app
from queuectl.demo import manifests as m
from queuectl.demo.manifests import Document, Pods
from queuectl.domain.quantity import GPU
from queuectl.localcluster.client import Client
from tests.system.acts import die, kubectl, put, remove, rules, stop_queue, until_reason
from tests.system.house import BLOCK, RACK, House, Room

pytestmark = pytest.mark.system
USER = "example.com/user"


def foretold(room: Room, *queues: Document) -> dict[str, Any]:
    """The result of ``plan -f`` for the output of kubectl, with these queues."""
    room.until(lambda: room.states() and all_settled(room), "no gang changes its state")
    common = [m.topology("gpus", BLOCK, RACK), m.flavor("gpu", topology="gpus")]
    queues = (*common, m.local_queue(room.namespace, "main", room.namespace), *queues)
    listed = "jobs,pods,resourcequotas,limitranges"
    printed = [
        kubectl(room.house, "get", "nodes", "-o", "json"),
        kubectl(room.house, "get", listed, "-n", room.namespace, "-o", "json"),
        *map(json.dumps, queues),
    ]
    result = CliRunner().invoke(app, ["plan", "-f", "-", "-o", "json"], input="\n".join(printed))
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def all_settled(room: Room) -> bool:
    return all(one["state"] in ("Running", "Pending") for one in room.workloads().values())


def queue_of(room: Room, gpus: int) -> Document:
    return m.cluster_queue(room.namespace, "gpu", {GPU: gpus, "cpu": "1M"})


def main_reasons(planned: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Name to code and message of the main reason."""
    return {
        one["workload"].partition("/")[2]: (
            one["reasons"][0]["code"],
            one["reasons"][0]["message"],
        )
        for one in planned["pending"]
    }


def test_a_resource_quota_of_limits_delays_a_gang_until_it_fits(home: House) -> None:
    with home.room(128) as room:
        meta = {"name": "team", "namespace": room.namespace}
        hard = {"limits.cpu": "5"}
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta}
        room.client.apply(quota | {"spec": {"hard": hard}})
        pods = Pods(2, gpus=8, cpu="2")
        room.job("first", pods)
        room.until_state("first", "Running")
        room.job("second", pods)
        waits = until_reason(room, "second", "Pending", "ResourceQuotaExceeded")
        assert waits["reason"]["details"]["resource"] == "limits.cpu"
        told = (waits["reason"]["code"], waits["reason"]["message"])
        queue = queue_of(room, 128)
        assert main_reasons(foretold(room, queue)) == {"second": told}
        die(room)
        remove(room, "first")
        room.until_state("second", "Running")
        assert room.workload("second")["attempt"] == 1


def test_a_limit_range_sets_defaults_and_delays_gangs_that_violate_it(home: House) -> None:
    with home.room(32) as room:
        meta = {"name": "team", "namespace": room.namespace}
        item = {"type": "Container", "max": {"cpu": "16"}, "defaultRequest": {"cpu": "8"}}
        limit_range = {"apiVersion": "v1", "kind": "LimitRange", "metadata": meta}
        room.client.apply(limit_range | {"spec": {"limits": [item]}})
        silent = m.job("silent", room.namespace, "main", Pods(2, gpus=8))
        (container,) = silent["spec"]["template"]["spec"]["containers"]
        container["resources"] = {"limits": {GPU: "8"}}
        room.submit(silent)
        room.until_state("silent", "Running")
        assert [pod.requests["cpu"] for pod in room.pods("silent")] == [8_000, 8_000]
        room.job("greedy", Pods(1, gpus=8, cpu="20"))
        waits = until_reason(room, "greedy", "Pending", "LimitRangeViolated")
        told = (waits["reason"]["code"], waits["reason"]["message"])
        assert "is more than the max of cpu (16)" in told[1]
        die(room)
        assert main_reasons(foretold(room, queue_of(room, 32))) == {"greedy": told}
        room.client.delete(f"/api/v1/namespaces/{room.namespace}/limitranges/team")
        room.until_state("greedy", "Running")
        assert room.workload("silent")["attempt"] == 1


@contextmanager
def engineers(home: House, *names: str) -> Iterator[dict[str, Client]]:
    """Clients of people who may do anything to jobs and pods."""
    with ExitStack() as stack:
        clients = {name: home.cluster.client_for_user(name, ["engineers"]) for name in names}
        for client in clients.values():
            stack.callback(client.close)
        yield clients


def test_a_user_holds_no_more_than_the_limit_and_others_start(home: House) -> None:
    usage = {"usageHalfLifeTime": "1h", "usageSamplingInterval": "5m"}
    with (
        home.room(64, strategy="StrictFIFO") as room,
        rules(room, admissionFairSharing=usage, queuectl={"userLabel": USER}),
        engineers(home, "ann", "ben") as clients,
    ):
        queue = queue_of(room, 64)
        queue["spec"] |= {"queueingStrategy": "StrictFIFO", "policy": {"maxPerUser": 16}}
        put(room, queue)

        def submit(user: str, name: str) -> None:
            document = m.job(name, room.namespace, "main", Pods(2, gpus=8))
            # Neither a label nor an annotation of the job overrides the user who created it.
            document["metadata"]["labels"][USER] = name
            document["metadata"]["annotations"] = {"queuectl.dev/submitted-by": name}
            path = room.client.path_of(document)
            clients[user].create(path.rsplit("/", 1)[0], document)
            room.made.append(path)

        submit("ann", "first")
        room.until_state("first", "Running")
        for name in ("second", "third"):
            submit("ann", name)
        until_reason(room, "second", "Pending", "MaxPerUserExceeded")
        until_reason(room, "third", "Pending", "WaitingInOrder")
        die(room)
        submit("ben", "other")
        room.until_state("other", "Running")
        waits = until_reason(room, "second", "Pending", "MaxPerUserExceeded")
        told = room.rest.explain(room.namespace, "second")
        assert waits["reason"]["message"] in told["message"]
        assert "needed for user ann in ClusterQueue" in told["message"]
        assert not room.pods("second")
        remove(room, "first")
        die(room)
        room.until_state("second", "Running")
        until_reason(room, "third", "Pending", "MaxPerUserExceeded")


def test_plan_predicts_the_evictions_of_a_drained_queue(home: House) -> None:
    with home.room(32) as room:
        room.job("runs", Pods(2, gpus=8))
        room.until_state("runs", "Running")
        room.job("waits", Pods(4, gpus=8))
        until_reason(room, "waits", "Pending", "WaitingForQuota")
        assert foretold(room, queue_of(room, 32))["preempted"] == []
        stopped = queue_of(room, 32)
        stopped["spec"]["stopPolicy"] = "HoldAndDrain"
        planned = foretold(room, stopped)
        (out,) = planned["preempted"]
        stop_queue(room, 32, "HoldAndDrain")
        until_reason(room, "runs", "Pending", out["reason"])
        waits = until_reason(room, "waits", "Pending", "ClusterQueueStopped")
        reason = (waits["reason"]["code"], waits["reason"]["message"])
        assert main_reasons(planned) == {"waits": reason}
        assert out["workload"] == f"{room.namespace}/runs"
