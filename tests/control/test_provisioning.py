"""Gangs for which an autoscaler makes nodes, on a real Postgres. The autoscaler is simulated (tests/support/autoscaler.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from queuectl.control.leader import provisioner
from queuectl.domain.checks import CheckState
from queuectl.domain.commands import DONE, Action
from queuectl.domain.ledger import Entry, State
from queuectl.domain.reasons import Code
from queuectl.objects.kubernetes.provisioning import (
    WORKLOAD,
    documents,
    request_name,
    template_name,
)
from queuectl.state import freeze
from tests.control.rig import Rig, configuration, gang, live, nodes, rig
from tests.control.test_admission_checks import check, report, untouched
from tests.control.test_by_hand import answered
from tests.control.test_crash_matrix import survives
from tests.doubles.cluster import FakeCluster
from tests.support.autoscaler import CLASS, GPU, Document, SimulatedAutoscaler
from tests.support.postgres import TestPostgres

CHECK = "nodes"


@dataclass
class OnDouble:
    """The double, as the simulated autoscaler uses it."""

    cluster: FakeCluster

    def requests(self) -> Iterable[Document]:
        return self.cluster.server.all("provisioningrequests")

    def template(self, namespace: str, name: str) -> Document | None:
        return self.cluster.server.objects["podtemplates"].get((namespace, name))

    def free(self) -> dict[str, int]:
        free = {
            node["metadata"]["name"]: int(node["status"]["allocatable"][GPU])
            for node in self.cluster.server.all("nodes")
            if not node["spec"].get("taints")
        }
        for pod in self.cluster.all_pods():
            node = pod.node or pod.pin
            if node in free and not pod.terminal:
                free[node] -= pod.requests[GPU]
        return free

    def add_node(self, document: Document) -> None:
        self.cluster.add_node(document)

    def set_conditions(self, request: Document, conditions: list[Document]) -> None:
        self.cluster.server.edit(
            "provisioningrequests",
            request,
            lambda d: d.setdefault("status", {}).update(conditions=conditions),
        )


def settings(**spec: Any) -> Document:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ProvisioningRequestConfig",
        "metadata": {"name": "atomic"},
        "spec": {
            "provisioningClassName": CLASS,
            "managedResources": [GPU],
            "retryStrategy": {"backoffBaseSeconds": 1, "backoffLimitCount": 1},
            **spec,
        },
    }


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The provisioner waits for a real time otherwise, which is most of the time of these tests."""
    monkeypatch.setattr(provisioner, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(provisioner, "REFUSED_SECONDS", 0.1)


async def provisions(
    world: Rig,
    *others: str,
    most: int = 1000,
    quota: int = 16,
    answers_within: int | None = None,
    strategy: str = "BestEffortFIFO",
    **spec: Any,
) -> SimulatedAutoscaler:
    """The ClusterQueue has a check that makes nodes, and these checks of other controllers. ``answers_within``: the timeout of the first, in seconds."""
    makes = check(CHECK, "kueue.x-k8s.io/provisioning-request")
    makes["spec"]["parameters"] = {
        "apiGroup": "kueue.x-k8s.io",
        "kind": "ProvisioningRequestConfig",
        "name": "atomic",
    }
    if answers_within is not None:
        makes["spec"]["policy"] = {"timeoutSeconds": answers_within}
    await world.store.put_config(settings(**spec))
    for document in (makes, *map(check, others)):
        await world.store.put_config(document)
    (queue,) = (d for d in configuration(quota, strategy=strategy) if d["kind"] == "ClusterQueue")
    rules = [{"name": name} for name in (CHECK, *others)]
    queue["spec"]["admissionChecksStrategy"] = {"admissionChecks": rules}
    await world.store.put_config(queue)
    present = len(world.cluster.server.all("nodes"))
    autoscaler = SimulatedAutoscaler(
        OnDouble(world.cluster), lambda number: dict(nodes(present + number + 1)[-1]), most=most
    )
    world.each_turn = autoscaler.step
    return autoscaler


def requests(world: Rig) -> list[Document]:
    return world.cluster.server.all("provisioningrequests")


def name_of(request: Document) -> str:
    return str(request["metadata"]["name"])


@pytest.mark.sets_aside
async def test_a_gang_whose_request_cannot_be_made_delays_no_other(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(name: str, entry: Entry, *more: Any) -> Any:
        if entry.name == "first":
            raise RuntimeError("cannot be made")
        return documents(name, entry, *more)

    monkeypatch.setattr(provisioner, "documents", failing)
    async with rig(database_url, 0) as world:
        await provisions(world)
        first = world.cluster.submit(gang("Job", "first", 1))
        second = world.cluster.submit(gang("Job", "second", 1))
        await world.until_state(second, State.RUNNING)
        entry = await world.entry(first)
        assert entry.state is State.RESERVED


async def test_a_gang_gets_the_nodes_that_it_needs_on_an_empty_cluster(database_url: str) -> None:
    async with rig(database_url, 0) as world:
        autoscaler = await provisions(world)
        uid = world.cluster.submit(gang("Job", "train", 2))
        runs = await world.until_state(uid, State.RUNNING)
        assert runs.placement is not None
        assert sorted(runs.placement.podsets[0].by_node) == sorted(autoscaler.added)
        assert len(autoscaler.added) == 2, "as many nodes as the gang needs"
        (request,) = requests(world)
        for pod in world.cluster.server.all("pods"):
            annotations = pod["metadata"]["annotations"]
            assert annotations["autoscaling.x-k8s.io/consume-provisioning-request"] == name_of(
                request
            )
            assert annotations["autoscaling.x-k8s.io/provisioning-class-name"] == CLASS
        world.cluster.finish(uid)
        await world.until_state(uid, State.FINISHED)
        await world.until(lambda: not requests(world), "its request is deleted")
        assert not world.cluster.server.all("podtemplates")


async def test_a_gang_that_fits_the_current_nodes_starts_without_a_request(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        autoscaler = await provisions(world)
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)
        assert (autoscaler.asked, autoscaler.added) == ([], [])


async def test_each_gang_asks_for_its_own_nodes_and_no_more(database_url: str) -> None:
    async with rig(database_url, 1) as world:
        autoscaler = await provisions(world)
        small = world.cluster.submit(gang("Job", "small", 1))
        await world.until_state(small, State.RUNNING)
        large = world.cluster.submit(gang("Job", "large", 1))
        await world.until_state(large, State.RUNNING)
        assert len(autoscaler.added) == 1
        assert len(autoscaler.asked) == 1


async def test_quota_is_held_while_nodes_are_made(database_url: str) -> None:
    async with rig(database_url, 0) as world:
        await provisions(world, most=0)
        uid = await waits_for_nodes(world, "train")
        entry = await world.until_entry(
            uid, lambda e: "is not found" in e.reason.message, "its reason has the message"
        )
        assert entry.reason.message == (
            "its quota is reserved, and it waits for its nodes: "
            "nodes (Pending: Capacity is not found, CA will try to find it later.)"
        )
        assert entry.lease is not None
        assert entry.lease.placement.awaits_nodes
        other = world.cluster.submit(gang("Job", "other", 1))
        waits = await world.until_entry(
            other, lambda e: e.reason.code is not Code.QUEUED, "planned"
        )
        assert waits.reason.code is Code.WAITING_FOR_QUOTA
        assert untouched(world, uid)


async def waits_for_nodes(world: Rig, name: str, pods: int = 2, priority: str = "low") -> str:
    uid = world.cluster.submit(gang("Job", name, pods, priority))

    def waits(entry: Entry) -> bool:
        return entry.lease is not None and entry.lease.placement.awaits_nodes

    await world.until_entry(uid, waits, "it waits for nodes")
    await world.until(lambda: requests(world), "its request exists")
    return uid


async def test_a_gang_of_a_higher_priority_gets_the_quota_of_one_that_waits_for_nodes(
    database_url: str,
) -> None:
    async with rig(database_url, 0) as world:
        await provisions(world, most=0)
        low = await waits_for_nodes(world, "low")
        (first,) = requests(world)
        high = await waits_for_nodes(world, "high", priority="high")
        entry = await world.until_state(low, State.PENDING)
        assert (entry.evictions, entry.checks.statuses) == (0, ())
        await world.until(
            lambda: (
                [r["metadata"]["annotations"]["queuectl.dev/workload-uid"] for r in requests(world)]
                == [high]
            ),
            "the request of the first is deleted",
        )
        assert name_of(first) not in map(name_of, requests(world))


async def test_a_gang_of_a_higher_priority_evicts_others_if_its_nodes_do_not_join_in_time(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freeze, "JOIN_SECONDS", 1.0)
    async with rig(database_url, 1) as world:
        autoscaler = await provisions(world, quota=32)
        low = world.cluster.submit(gang("Job", "low", 1))
        await world.until_state(low, State.RUNNING)
        world.each_turn = lambda: None
        high = await waits_for_nodes(world, "high", priority="high")
        (request,) = requests(world)
        autoscaler.set(request, "Provisioned", "CapacityIsProvisioned", "made")
        await world.until_entry(high, lambda e: CHECK in e.checks.ready, "its check is ready")
        world.cluster.add_node(nodes(2)[-1])
        evicted = await world.until_entry(low, lambda e: bool(e.evictions), "it is evicted")
        made = next(
            line for line in await world.store.history(high) if "Ready" in line.reason.message
        )
        assert evicted.since >= made.at + 1.0
        runs = await world.until_state(high, State.RUNNING)
        assert runs.placement is not None
        assert sorted(runs.placement.podsets[0].by_node) == ["n0", "n1"]
        await world.until(
            lambda: name_of(request) not in map(name_of, requests(world)), "it is deleted"
        )


async def test_a_request_that_fails_is_made_again_and_then_the_gang_is_deactivated(
    database_url: str,
) -> None:
    async with rig(database_url, 0) as world:
        autoscaler = await provisions(world, most=0)
        uid = await waits_for_nodes(world, "train")
        (first,) = requests(world)
        autoscaler.set(first, "Failed", "FailedToCreatePods", "no more quota in the cloud")
        waits = await world.until_state(uid, State.BACKOFF)
        assert waits.reason.message == (
            "admission check nodes is Retry: the request failed: no more quota in the cloud; it queues again in 1 s"
        )
        assert waits.lease is None
        await world.until(
            lambda: requests(world) and name_of(requests(world)[0]) != name_of(first),
            "another request",
        )
        (second,) = requests(world)
        autoscaler.set(second, "Failed", "FailedToCreatePods", "still none")
        entry = await world.until_state(uid, State.DEACTIVATED)
        assert entry.reason.message == (
            "admission check nodes is Rejected: the request failed: still none; attempt 2"
        )
        await world.until(lambda: not requests(world), "no request is left")
        assert untouched(world, uid)
        assert await answered(world, uid, Action.ACTIVATE) == DONE
        await world.until(lambda: bool(requests(world)), "its nodes are requested again")
        (third,) = requests(world)
        assert name_of(third) not in (name_of(first), name_of(second))
        autoscaler.set(third, "Failed", "FailedToCreatePods", "none again")
        waits = await world.until_state(uid, State.BACKOFF)
        assert waits.reason.message.endswith("none again; it queues again in 1 s")


async def test_a_booking_that_expires_before_the_start_is_made_again(database_url: str) -> None:
    async with rig(database_url, 0) as world:
        autoscaler = await provisions(world, "budget")
        uid = await waits_for_nodes(world, "train")
        await world.until_entry(uid, lambda e: CHECK in e.checks.ready, "its nodes are made")
        entry = await world.until_entry(
            uid,
            lambda e: e.lease is not None and e.lease.placement.on_nodes,
            "it is placed on them",
        )
        assert [s.name for s in entry.checks.unready] == ["budget"]
        (request,) = requests(world)
        autoscaler.expire(request)
        await world.until_state(uid, State.BACKOFF)
        again = await world.until_entry(uid, lambda e: e.awaits_checks, "it waits again")
        assert [s.name for s in again.checks.statuses] == ["budget"], "the nodes exist now"
        assert await report(world, uid, "budget", CheckState.READY)
        await world.until_state(uid, State.RUNNING)
        assert len(autoscaler.added) == 2


async def test_a_booking_that_expires_while_no_node_fits_is_made_again(database_url: str) -> None:
    async with rig(database_url, 0) as world:
        autoscaler = await provisions(world, most=0)
        world.each_turn = lambda: None
        uid = await waits_for_nodes(world, "train")
        (first,) = requests(world)
        autoscaler.set(first, "Provisioned", "CapacityIsProvisioned", "made")
        await world.until_entry(uid, lambda e: CHECK in e.checks.ready, "its check is ready")
        autoscaler.expire(requests(world)[0])
        waits = await world.until_state(uid, State.BACKOFF)
        assert waits.lease is None
        await world.until(
            lambda: requests(world) and name_of(requests(world)[0]) != name_of(first),
            "another request",
        )


async def test_a_booking_that_expires_while_the_gang_runs_changes_nothing(
    database_url: str,
) -> None:
    async with rig(database_url, 0) as world:
        autoscaler = await provisions(world)
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)
        (request,) = requests(world)
        autoscaler.expire(request)
        world.cluster.finish(uid)
        entry = await world.until_state(uid, State.FINISHED)
        assert entry.evictions == 0


async def test_a_gang_whose_nodes_are_revoked_is_evicted_and_asks_again(
    database_url: str,
) -> None:
    async with rig(database_url, 0) as world:
        autoscaler = await provisions(world)
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)
        (request,) = requests(world)
        autoscaler.set(request, "CapacityRevoked", "SpotReclaimed", "the cloud takes them back")
        leaving = await world.until_state(uid, State.EVICTING)
        assert leaving.reason.code is Code.ADMISSION_CHECK
        await world.until_state(uid, State.BACKOFF)
        for name in autoscaler.added[:2]:
            world.cluster.delete_node(name)
        await world.until_state(uid, State.RUNNING)
        assert len(autoscaler.added) == 4
        assert len(autoscaler.asked) == 2


async def test_later_gangs_of_a_strict_queue_leave_nodes_that_join_one_at_a_time_to_their_gang(
    database_url: str,
) -> None:
    async with rig(database_url, 0) as world:
        autoscaler = await provisions(world, quota=64, strategy="StrictFIFO")
        autoscaler.boots = True
        pair = await waits_for_nodes(world, "pair")
        await world.until_entry(pair, lambda e: CHECK in e.checks.ready, "its check is ready")
        first = autoscaler.boot()
        later = world.cluster.submit(gang("Job", "later", 1))
        waits = await world.until_entry(
            later, lambda e: e.reason.code is not Code.QUEUED, "planned"
        )
        assert (waits.state, waits.reason.code) == (State.PENDING, Code.WAITING_IN_ORDER)
        second = autoscaler.boot()
        runs = await world.until_state(pair, State.RUNNING)
        assert runs.placement is not None
        assert {*runs.placement.podsets[0].by_node} == {first, second}
        await world.until(lambda: autoscaler.booting, "the nodes of the later gang are requested")
        autoscaler.boot()
        await world.until_state(later, State.RUNNING)
        assert len(autoscaler.added) == 3


@pytest.mark.parametrize("late", [False, True])
async def test_values_of_the_class_select_the_nodes(database_url: str, late: bool) -> None:
    """``late``: they come after the request is provisioned, and before its nodes."""
    async with rig(database_url, 1) as world:
        update = {"key": "pool", "valueFromProvisioningClassDetail": "poolName"}
        autoscaler = await provisions(world, podSetUpdates={"nodeSelector": [update]})
        world.each_turn = lambda: None
        uid = await waits_for_nodes(world, "train")

        async def made() -> None:
            autoscaler.set(requests(world)[0], "Provisioned", "CapacityIsProvisioned", "made")
            await world.until_entry(uid, lambda e: CHECK in e.checks.ready, "its check is ready")

        if late:
            await made()
        world.cluster.server.edit(
            "provisioningrequests",
            requests(world)[0],
            lambda d: d.setdefault("status", {}).update(
                provisioningClassDetails={"poolName": "p7"}
            ),
        )
        if not late:
            await made()
        await world.until_entry(
            uid,
            lambda e: (("pool", "p7"),) in {u.node_selector for u in e.checks.updates},
            "its pods select the nodes",
        )
        world.cluster.add_node(nodes(2)[-1])
        for number in (2, 3):
            node = nodes(number + 1)[-1]
            node["metadata"]["labels"]["pool"] = "p7"
            world.cluster.add_node(node)
        runs = await world.until_state(uid, State.RUNNING)
        assert runs.placement is not None
        assert sorted(runs.placement.podsets[0].by_node) == ["n2", "n3"]


async def test_a_gang_without_a_managed_resource_evicts_others_for_existing_nodes(
    database_url: str,
) -> None:
    async with rig(database_url, 1) as world:
        await provisions(world, managedResources=["example.com/other"])
        low = world.cluster.submit(gang("Job", "low", 1))
        await world.until_state(low, State.RUNNING)
        high = world.cluster.submit(gang("Job", "high", 1, "high"))
        await world.until_state(high, State.RUNNING)
        waits = await world.until_state(low, State.PENDING)
        assert waits.lease is None
        assert requests(world) == []


@pytest.mark.parametrize("refused", ["podtemplates", "provisioningrequests"])
async def test_a_gang_whose_request_is_refused_holds_no_quota_and_tries_again(
    database_url: str, refused: str
) -> None:
    async with rig(database_url, 0) as world:
        world.cluster.refuses = lambda w: 422 if w.resource == refused else None
        await provisions(world)
        uid = world.cluster.submit(gang("Job", "train", 2))
        waits = await world.until_state(uid, State.BACKOFF)
        assert waits.reason.message.startswith(
            "admission check nodes is Retry: its nodes cannot be requested: "
        )
        assert waits.lease is None
        entry = await world.until_entry(
            uid, lambda e: e.state is State.BACKOFF and e.checks.retries == {"nodes": 2}, "again"
        )
        assert entry.requeue_at is not None
        assert entry.requeue_at - entry.since > 1000, "not deactivated after the last retry"
        await world.until(
            lambda: not world.cluster.server.all("podtemplates"), "no template is left"
        )


async def test_a_gang_whose_request_gets_no_usable_answer_shows_the_answer_and_tries_again_ever_later(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A webhook for ProvisioningRequests is unreachable."""
    monkeypatch.setattr(provisioner, "REFUSED_SECONDS", 10.0)
    async with rig(database_url, 0) as world:
        world.cluster.refuses = lambda w: 500 if w.resource == "provisioningrequests" else None
        await provisions(world)
        uid = world.cluster.submit(gang("Job", "train", 2))
        waits = await world.until_entry(
            uid, lambda e: "a webhook denies it" in e.reason.message, "its reason has the answer"
        )
        assert waits.state is State.RESERVED
        assert "nodes (Pending: the request is not created yet: " in waits.reason.message
        await asyncio.sleep(1.0)
        tries = [w for w in world.cluster.writes if w.resource == "provisioningrequests"]
        assert 2 <= len(tries) <= 4
        world.cluster.refuses = lambda _: None
        await world.until_state(uid, State.RUNNING)


async def test_a_gang_whose_request_gets_no_usable_answer_in_time_gets_the_nodes_of_the_next_flavor(
    database_url: str,
) -> None:
    async with rig(database_url, 0) as world:
        world.cluster.refuses = lambda w: 500 if w.resource == "provisioningrequests" else None
        autoscaler = await two_flavors(world, answers_within=1)
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_entry(uid, lambda e: flavors_of(e) == {"gpu"}, "the next flavor")
        texts = [line.reason.message for line in await world.store.history(uid)]
        assert any("within 1 s: the request is not created yet: " in text for text in texts)
        writes = [w for w in world.cluster.writes if w.resource == "podtemplates"]
        deleted = [w.name for w in writes if "template" not in w.patch]
        assert deleted
        assert len(deleted) == len(set(deleted)), "each template is noted once"
        world.cluster.refuses = lambda _: None
        autoscaler.most = 2
        await world.until_state(uid, State.RUNNING)


async def test_a_gang_whose_request_is_refused_gets_the_nodes_of_the_next_flavor(
    database_url: str,
) -> None:
    async with rig(database_url, 0) as world:
        world.cluster.refuses = lambda w: 403 if w.resource == "provisioningrequests" else None
        autoscaler = await two_flavors(world)
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_entry(uid, lambda e: flavors_of(e) == {"gpu"}, "the next flavor")
        world.cluster.refuses = lambda _: None
        autoscaler.most = 2
        runs = await world.until_state(uid, State.RUNNING)
        assert flavors_of(runs) == {"gpu"}


async def test_no_template_is_left_after_the_autoscaler_has_deleted_the_request(
    database_url: str,
) -> None:
    async with rig(database_url, 0) as world:
        await provisions(world)
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)
        (request,) = requests(world)
        world.cluster.server.remove("provisioningrequests", request)
        world.cluster.finish(uid)
        await world.until_state(uid, State.FINISHED)
        await world.until(
            lambda: not world.cluster.server.all("podtemplates"), "its template is deleted"
        )


@pytest.mark.parametrize(
    ("resource", "annotations"),
    [
        ("podtemplates", {}),
        ("podtemplates", {WORKLOAD: "another"}),
        ("provisioningrequests", {}),
    ],
    ids=["a user's template", "another gang's template", "a user's request"],
)
async def test_an_object_of_others_with_the_name_of_a_request_is_the_reason_and_stays(
    database_url: str, resource: str, annotations: dict[str, str]
) -> None:
    async with rig(database_url, 0) as world:
        world.cluster.refuses = lambda w: 422 if w.resource == "podtemplates" else None
        retries = {"backoffBaseSeconds": 1, "backoffLimitCount": 2}
        await provisions(world, retryStrategy=retries)
        uid = world.cluster.submit(gang("Job", "train", 2))
        entry = await world.until_state(uid, State.BACKOFF)
        second = replace(entry, checks=replace(entry.checks, round=entry.checks.round + 1))
        request = request_name(second, CHECK)
        name = template_name(request, "main") if resource == "podtemplates" else request
        meta = {"name": name, "namespace": "default", "annotations": annotations}
        other: Document = {"metadata": meta, "spec": {"podSets": []}}
        world.cluster.server.create(resource, other)
        world.cluster.refuses = lambda _: None
        await world.until_entry(
            uid,
            lambda e: f"{name} exists, and queuectl did not make it" in e.reason.message,
            "named",
        )
        await world.until_state(uid, State.RUNNING)
        assert ("default", name) in world.cluster.server.objects[resource]


async def test_a_request_that_is_deleted_before_the_watch_shows_it_is_made_again(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queuectl.control.leader.provisioner.SHOWN_SECONDS", 0.1)
    async with rig(database_url, 0) as world:
        autoscaler = await provisions(world)
        deleted: list[str] = []

        def turn() -> None:
            if not deleted and (found := requests(world)):
                world.cluster.server.remove("provisioningrequests", found[0])
                world.cluster.cut_watch()
                deleted.append(name_of(found[0]))
            elif deleted:
                autoscaler.step()

        world.each_turn = turn
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)
        assert list(map(name_of, requests(world))) == deleted


async def test_a_request_with_a_finalizer_is_deleted_once(database_url: str) -> None:
    async with rig(database_url, 0) as world:
        await provisions(world)
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)
        deletions: list[str] = []

        async def delete(resource: str, namespace: str, name: str) -> None:
            deletions.append(name)
            if resource == "provisioningrequests":
                found = world.cluster.server.get(resource, namespace, name)
                world.cluster.server.edit(
                    resource,
                    found,
                    lambda d: d["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"),
                )

        world.cluster.delete_object = delete  # type: ignore[method-assign]
        world.cluster.finish(uid)
        await world.until_state(uid, State.FINISHED)
        await world.until(lambda: deletions, "the request is deleted")
        other = world.cluster.submit(gang("Job", "other", 1))  # some turns of the provisioner
        await world.until_state(other, State.RUNNING)
        assert len(deletions) == len(set(deletions)), deletions


async def test_only_templates_that_queuectl_made_are_deleted_with_a_request(
    database_url: str,
) -> None:
    """A user who can create ProvisioningRequests, and not delete PodTemplates, writes one with the annotation of queuectl."""
    async with rig(database_url, 0) as world:
        await provisions(world)
        server = world.cluster.server
        for name in ("of-the-team", "ppt-forged-1-main"):
            template = {
                "apiVersion": "v1",
                "kind": "PodTemplate",
                "template": {"spec": {"containers": []}},
            }
            server.create(
                "podtemplates", {**template, "metadata": {"name": name, "namespace": "default"}}
            )
        forge(world, "forged-1", "gone", "of-the-team", "ppt-forged-1-main")
        await world.until(lambda: not requests(world), "the request is deleted")
        assert templates(world) == ["of-the-team"]


@pytest.mark.parametrize("life", ["waits", "runs"])
async def test_no_template_of_another_gang_is_deleted_with_a_request(
    database_url: str, life: str
) -> None:
    """The name of the other gang's request can begin with the name of this one."""
    async with rig(database_url, 0) as world:
        await provisions(world, most=0 if life == "waits" else 2)
        uid = await waits_for_nodes(world, "train")
        if life == "runs":
            await world.until_state(uid, State.RUNNING)
        kept = templates(world)
        assert kept[0].startswith("ppt-job-train-")
        for gang_uid in ("gone", uid):
            forge(world, "job", gang_uid, *kept)
            await world.until(lambda: len(requests(world)) == 1, "the request is deleted")
            assert templates(world) == kept


def forge(world: Rig, name: str, uid: str, *named: str) -> None:
    """A user creates a request as if for this gang (``uid``), with these templates."""
    metadata = {"name": name, "namespace": "default", "annotations": {WORKLOAD: uid}}
    podsets = [{"podTemplateRef": {"name": template}, "count": 1} for template in named]
    document = {"metadata": metadata, "spec": {"podSets": podsets}}
    world.cluster.server.create("provisioningrequests", document)


def templates(world: Rig) -> list[str]:
    return [t["metadata"]["name"] for t in world.cluster.server.all("podtemplates")]


def test_each_podset_has_its_own_template() -> None:
    names = [
        "a-b",
        "a.b",
        "a_b",
        "A-b",
        "a--b",
        "-a-b",
        "a-b-",
        "a" * 300,
        "a" * 300 + ".",
        "ü",
        ".",
    ]
    assert len({template_name("request-1", name) for name in names}) == len(names)
    assert template_name("request-1", "workers") == "ppt-request-1-workers"


async def test_spot_nodes_are_made_behind_on_demand_quota_and_again_after_an_interruption(
    database_url: str,
) -> None:
    async with rig(database_url, 0) as world:
        await provisions(world)
        await world.store.put_config(
            {"apiVersion": "queuectl.dev/v1", "kind": "Configuration", "metadata": {"name": "default"},
             "queuectl": {"evictionGrace": "1s"}}
        )  # fmt: skip
        await world.store.put_config(
            {"apiVersion": "queuectl.dev/v1", "kind": "ResourceFlavor", "metadata": {"name": "spot"},
             "spec": {"nodeLabels": {"capacity": "spot"}, "topologyName": "gpus"}}
        )  # fmt: skip
        (queue,) = (d for d in configuration(8) if d["kind"] == "ClusterQueue")
        (group,) = queue["spec"]["resourceGroups"]
        on_demand = group["flavors"][0]
        gpus = [
            {**one, "nominalQuota": 32} if one["name"] == GPU else one
            for one in on_demand["resources"]
        ]
        group["flavors"].append({"name": "spot", "resources": gpus})
        rule = {"name": CHECK, "onFlavors": ["spot"]}
        queue["spec"]["admissionChecksStrategy"] = {"admissionChecks": [rule]}
        await world.store.put_config(queue)
        autoscaler = SimulatedAutoscaler(OnDouble(world.cluster), spot_node)
        world.each_turn = autoscaler.step

        uid = world.cluster.submit(gang("Job", "train", 2))
        runs = await world.until_state(uid, State.RUNNING)
        assert runs.placement is not None
        assert runs.placement.podsets[0].charged == {"spot"}, "on-demand quota is too small for it"
        (request,) = requests(world)
        (podset,) = request["spec"]["podSets"]
        template = OnDouble(world.cluster).template("default", podset["podTemplateRef"]["name"])
        assert template is not None
        assert template["template"]["spec"]["nodeSelector"] == {"capacity": "spot"}

        world.cluster.taint(autoscaler.added[0], "karpenter.sh/disrupted", "NoSchedule")
        leaving = await world.until_state(uid, State.EVICTING)
        assert leaving.reason.code is Code.NODE_INTERRUPTED
        assert leaving.stop_at is not None, "it has time to save its work"
        await world.until_entry(uid, lambda e: e.attempt == 2, "it starts again")
        again = await world.until_state(uid, State.RUNNING)
        assert again.placement is not None
        assert autoscaler.added[0] not in again.placement.podsets[0].by_node
        assert len(autoscaler.asked) == 2
        assert len(autoscaler.added) == 3, "one node of the first ones is still good"


async def two_flavors(world: Rig, **spec: Any) -> SimulatedAutoscaler:
    """Flavors spot and gpu, in this order, with a check that makes nodes: none are there. The first retry is the last."""
    autoscaler = await provisions(world, most=0, **spec)
    await world.store.put_config(
        {"apiVersion": "queuectl.dev/v1", "kind": "ResourceFlavor", "metadata": {"name": "spot"},
         "spec": {"nodeLabels": {"capacity": "spot"}, "topologyName": "gpus"}}
    )  # fmt: skip
    (queue,) = (d for d in configuration(16) if d["kind"] == "ClusterQueue")
    (group,) = queue["spec"]["resourceGroups"]
    group["flavors"].insert(0, {**group["flavors"][0], "name": "spot"})
    queue["spec"]["admissionChecksStrategy"] = {"admissionChecks": [{"name": CHECK}]}
    await world.store.put_config(queue)
    return autoscaler


async def fails(world: Rig, autoscaler: SimulatedAutoscaler, times: int = 2) -> None:
    """The current request fails, and those that follow it."""
    answered: set[str] = set()
    for _ in range(times):
        await world.until(
            lambda: not answered.issuperset(map(name_of, requests(world))), "a new request"
        )
        (request,) = (r for r in requests(world) if name_of(r) not in answered)
        autoscaler.set(request, "Failed", "OutOfCapacity", "no spot capacity")
        answered.add(name_of(request))


def flavors_of(entry: Entry) -> set[str]:
    placement = entry.placement if entry.state.live else entry.lease and entry.lease.placement
    return (
        {flavor for podset in placement.podsets for flavor in podset.charged}
        if placement
        else set()
    )


async def test_the_nodes_of_the_next_flavor_are_requested_after_the_last_retry(
    database_url: str,
) -> None:
    async with rig(database_url, 0) as world:
        autoscaler = await two_flavors(world)
        uid = await waits_for_nodes(world, "train")
        await fails(world, autoscaler)
        entry = await world.until_entry(uid, lambda e: flavors_of(e) == {"gpu"}, "the next flavor")
        texts = [line.reason.message for line in await world.store.history(uid)]
        assert (
            "admission check nodes is Retry: the request failed: no spot capacity; attempt 2; "
            "no nodes of flavor spot are requested for 1800 s; it queues again in 0 s"
        ) in texts
        assert set(entry.checks.unasked) == {"spot"}
        autoscaler.most = 2
        runs = await world.until_state(uid, State.RUNNING)
        assert flavors_of(runs) == {"gpu"}
        assert runs.checks.unasked == {}, "the next start begins with the first flavor again"
        assert runs.evictions == 0


async def test_the_nodes_of_the_next_flavor_are_requested_if_those_of_the_first_do_not_come_in_time(
    database_url: str,
) -> None:
    """The autoscaler answers that no capacity exists, and tries again for days."""
    async with rig(database_url, 0) as world:
        autoscaler = await two_flavors(world, answers_within=1)
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_entry(uid, lambda e: flavors_of(e) == {"gpu"}, "the next flavor")
        texts = [line.reason.message for line in await world.store.history(uid)]
        why = "its nodes are not provisioned within 1 s: Capacity is not found, CA will try to find it later."
        assert f"admission check nodes is Retry: {why}; it queues again in 1 s" in texts
        assert (
            f"admission check nodes is Retry: {why}; attempt 2; "
            "no nodes of flavor spot are requested for 1800 s; it queues again in 0 s"
        ) in texts
        autoscaler.most = 2
        runs = await world.until_state(uid, State.RUNNING)
        assert flavors_of(runs) == {"gpu"}


async def test_a_gang_whose_nodes_never_come_in_time_is_deactivated(database_url: str) -> None:
    async with rig(database_url, 0) as world:
        await provisions(world, most=0, answers_within=1)
        uid = world.cluster.submit(gang("Job", "train", 2))
        entry = await world.until_state(uid, State.DEACTIVATED)
        assert entry.reason.message == (
            "admission check nodes is Rejected: its nodes are not provisioned within 1 s: "
            "Capacity is not found, CA will try to find it later.; attempt 2"
        )


async def test_the_nodes_of_the_cheapest_flavor_are_requested_if_the_queue_prefers_it(
    database_url: str,
) -> None:
    async with rig(database_url, 0) as world:
        autoscaler = await two_flavors(world)
        prices = [
            {"name": "spot", "gpuHour": 3, "flavor": "spot"},
            {"name": "other", "gpuHour": 2},
        ]
        await world.store.put_config(
            {"apiVersion": "queuectl.dev/v1", "kind": "Configuration", "metadata": {"name": "default"},
             "queuectl": {"accounting": {"prices": prices}}}
        )  # fmt: skip
        (queue,) = (
            d for d in (await world.store.configuration())[1] if d["kind"] == "ClusterQueue"
        )
        queue["spec"]["policy"] = {"flavorOrder": "Cheapest"}
        await world.store.put_config(queue)
        autoscaler.most = 2
        uid = world.cluster.submit(gang("Job", "train", 2))
        runs = await world.until_state(uid, State.RUNNING)
        assert flavors_of(runs) == {"gpu"}
        shown = [{"flavor": "gpu", "gpuHour": 2.0}, {"flavor": "spot", "gpuHour": 3.0}]
        assert runs.reason.details == {"flavorPrices": shown}


async def test_a_gang_is_deactivated_after_the_requests_of_all_flavors_failed(
    database_url: str,
) -> None:
    async with rig(database_url, 0) as world:
        autoscaler = await two_flavors(world)
        uid = await waits_for_nodes(world, "train")
        await fails(world, autoscaler, times=4)
        entry = await world.until_state(uid, State.DEACTIVATED)
        assert entry.reason.code is Code.CHECK_REJECTED


async def test_a_flavor_whose_requests_failed_is_requested_again_after_a_time(
    database_url: str,
) -> None:
    async with rig(database_url, 0) as world:
        retries = {"backoffBaseSeconds": 1, "backoffMaxSeconds": 2, "backoffLimitCount": 0}
        autoscaler = await two_flavors(world, retryStrategy=retries)
        (queue,) = (
            d for d in (await world.store.configuration())[1] if d["kind"] == "ClusterQueue"
        )
        (group,) = queue["spec"]["resourceGroups"]
        for one in group["flavors"][1]["resources"]:
            one["nominalQuota"] = 0
        await world.store.put_config(queue)
        uid = await waits_for_nodes(world, "train")
        (first,) = requests(world)
        autoscaler.set(first, "Failed", "OutOfCapacity", "no spot capacity")
        await world.until_entry(
            uid, lambda e: e.state is State.PENDING and bool(e.checks.unasked), "it waits"
        )
        again = await world.until_entry(uid, lambda e: flavors_of(e) == {"spot"}, "spot again")
        assert again.checks.unasked == {}


async def test_no_request_is_made_for_a_gang_that_never_fits_the_template_of_the_flavor(
    database_url: str,
) -> None:
    async with rig(database_url, 0) as world:
        autoscaler = await provisions(world)
        await world.store.put_config(with_template(maximum=1))
        uid = world.cluster.submit(gang("Job", "train", 2))
        held = await world.until_entry(
            uid, lambda e: e.reason.code is Code.SHAPE_NEVER_FITS, "it is refused"
        )
        assert held.state is State.PENDING
        assert held.reason.message.startswith(
            "no nodes are requested, because it does not fit the nodeTemplate of flavor gpu (at most 1 node): "
        )
        assert (autoscaler.asked, requests(world)) == ([], [])
        await world.store.put_config(with_template(maximum=2))
        await world.until_state(uid, State.RUNNING)
        assert len(autoscaler.added) == 2


def with_template(maximum: int) -> Document:
    """The flavor, whose nodes have 8 GPUs and are at most so many."""
    template = {
        "allocatable": {"cpu": "64", "memory": "512Gi", GPU: 8},
        "maximumNodes": maximum,
        "nodesPerDomain": {"topology.queuectl.dev/rack": 4},
    }
    return {
        "apiVersion": "queuectl.dev/v1",
        "kind": "ResourceFlavor",
        "metadata": {"name": "gpu"},
        "spec": {"topologyName": "gpus", "policy": {"nodeTemplate": template}},
    }


def spot_node(number: int) -> Document:
    node = dict(nodes(number + 1)[-1])
    node["metadata"]["labels"]["capacity"] = "spot"
    return node


def empty(url: str) -> AbstractAsyncContextManager[Rig]:
    """A controller on a cluster without nodes."""
    return rig(url, 0)


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["Job", "PyTorchJob"])
@pytest.mark.timeout(600)
async def test_a_kill_at_any_step_asks_for_no_node_twice(postgres: TestPostgres, kind: str) -> None:
    async def story(world: Rig) -> None:
        autoscaler = await provisions(world, most=2)
        uid = world.cluster.submit(gang(kind, "train", 2))
        runs = await world.until_state(uid, State.RUNNING)
        assert runs.placement is not None
        assert len(autoscaler.added) == 2
        assert {name for p in runs.placement.podsets for name in p.by_node} == {*autoscaler.added}
        assert len(live(world.cluster.pods_of(uid))) == 2
        world.cluster.finish(uid)
        await world.until_state(uid, State.FINISHED)
        await world.until(lambda: not requests(world), "its request is deleted")
        assert not world.cluster.server.all("podtemplates")
        await world.at_rest()

    await survives(postgres, story, empty)
