"""Each cell of the matrix of kinds and features: `make test-kinds` runs them and writes docs/reference/kinds.md."""

from __future__ import annotations

import pytest

from queuectl.demo.manifests import Pods
from queuectl.objects import keys
from queuectl.objects.kinds import KINDS, path
from tests.kinds.entries import ENTRIES
from tests.kinds.entry import FEATURES, Entry, racks
from tests.support.elastic import elastic_of
from tests.system.actions import until_empty, until_reason, without_node
from tests.system.installation import RACK, Installation, Workspace

pytestmark = [pytest.mark.system, pytest.mark.kinds, pytest.mark.timeout(1500)]


def feature(name: str) -> pytest.MarkDecorator:
    """The kinds with this feature. The id of a test is the kind and the feature."""
    assert name in FEATURES
    entries = [one for one in ENTRIES if name not in one.without]
    return pytest.mark.parametrize("entry", entries, ids=[f"{one.kind}-{name}" for one in entries])


@feature("admit")
def test_it_waits_suspended_and_gated_and_starts_with_all_its_pods(
    installation: Installation, entry: Entry
) -> None:
    kind = KINDS[entry.kind]
    with installation.workspace(64) as workspace:
        workspace.job("first", Pods(4, gpus=8))
        workspace.until_state("first", "Running")
        made = entry.submit(workspace, "gang", 8)
        assert kind.is_suspended(made)
        assert all(keys.GATE in str(one) for one in kind.templates(made))
        until_reason(workspace, "gang", "Pending", "WaitingForQuota")
        assert workspace.pods("gang") == []
        workspace.client.delete(workspace.made[0], propagationPolicy="Background")
        entry.runs(workspace, "gang", 8)
        stored = workspace.client.get(path(kind, workspace.namespace, "gang"))
        assert not kind.is_suspended(stored)


@feature("place")
def test_all_its_pods_are_in_the_rack_that_it_requires(
    installation: Installation, entry: Entry
) -> None:
    with installation.workspace(128) as workspace:
        workspace.job("there", Pods(1, gpus=8))
        workspace.until_state("there", "Running")
        entry.submit(workspace, "gang", 4, required=RACK)
        assert len({*racks(entry.runs(workspace, "gang", 4))}) == 1


@feature("preempt")
def test_it_is_evicted_for_a_gang_of_higher_priority(
    installation: Installation, entry: Entry
) -> None:
    with installation.workspace(128) as workspace:
        entry.submit(workspace, "low", 16, priority="low")
        workspace.until_state("low", "Running")
        entry.submit(workspace, "high", 8, priority="high")
        workspace.until_state("high", "Running")
        until_empty(workspace, "low")
        lost = next(line for line in workspace.history("low") if line["toState"] == "Evicting")
        assert lost["reason"]["details"]["lostGpuSeconds"] > 0
        assert workspace.workload("low")["evictions"] == 1


@feature("requeue")
def test_it_runs_again_before_later_gangs_of_its_priority(
    installation: Installation, entry: Entry
) -> None:
    with installation.workspace(128, strategy="StrictFIFO") as workspace:
        entry.submit(workspace, "low", 16, priority="low")
        workspace.until_state("low", "Running")
        entry.submit(workspace, "high", 8, priority="high")
        entry.submit(workspace, "later", 4, priority="low")
        workspace.until_state("high", "Running")
        workspace.client.delete(workspace.made[1], propagationPolicy="Background")
        again = workspace.until_state("low", "Running")
        assert again["attempt"] == 2
        assert {pod.attempt for pod in entry.runs(workspace, "low", 16)} == {2}
        assert workspace.state("later") == "Pending"


@feature("repair")
def test_a_lost_pod_takes_its_slot_again_and_a_lost_node_is_replaced(
    installation: Installation, entry: Entry
) -> None:
    with installation.workspace(128) as workspace:
        entry.submit(workspace, "gang", 4)
        slots = {(p.podset, p.rank): p.node for p in entry.runs(workspace, "gang", 4)}
        lost = workspace.running("gang")[0]
        entry.lose(workspace, lost)
        workspace.until_running("gang", 4, lambda p: p.uid != lost.uid, "four run again")
        if all(rank is not None for _, rank in slots):
            assert {(p.podset, p.rank): p.node for p in workspace.running("gang")} == slots

        if entry.outlives_deletion:
            _lose_node(installation, workspace)
        assert workspace.workload("gang")["attempt"] == 1


def _lose_node(installation: Installation, workspace: Workspace) -> None:
    """Lose the node of a pod, and wait until a new pod runs on another node."""
    moved = workspace.running("gang")[-1]
    stay = {p.uid for p in workspace.running("gang")} - {moved.uid}
    assert moved.node is not None
    path = f"/api/v1/namespaces/{workspace.namespace}/pods/{moved.name}"
    with without_node(installation, moved.node):
        workspace.client.delete(path, missing_ok=True, gracePeriodSeconds=0)
        workspace.until_running("gang", 4, lambda p: p.node != moved.node, "all run elsewhere")
        assert stay <= {p.uid for p in workspace.running("gang")}


@feature("ranks")
def test_its_ranks_are_in_the_order_of_the_racks(installation: Installation, entry: Entry) -> None:
    with installation.workspace(128) as workspace:
        entry.submit(workspace, "gang", 12)
        pods = entry.runs(workspace, "gang", 12)
        assert {pod.podset for pod in pods if pod.rank is None} == {*entry.unranked}
        for podset in {pod.podset for pod in pods} - {*entry.unranked}:
            ranked = sorted(
                (pod for pod in pods if pod.podset == podset), key=lambda pod: pod.rank or 0
            )
            assert [pod.rank for pod in ranked] == list(range(len(ranked)))
            assert racks(ranked) == sorted(racks(ranked))


@feature("partial")
def test_it_starts_with_the_pods_that_have_room(installation: Installation, entry: Entry) -> None:
    with installation.workspace(128) as workspace:
        workspace.job("first", Pods(8, gpus=8))
        workspace.until_state("first", "Running")
        document = entry.make("gang", workspace.namespace, Pods(16, gpus=8), None)
        least = {keys.PREFIX + keys.MIN_PARALLELISM: "4"}
        document["metadata"].setdefault("annotations", {}).update(least)
        workspace.submit(document)
        entry.runs(workspace, "gang", 8)


@feature("elastic")
def test_it_grows_where_there_is_room_and_shrinks_for_a_gang_of_higher_priority(
    installation: Installation, entry: Entry
) -> None:
    with installation.workspace(64) as workspace:
        document = entry.make("gang", workspace.namespace, Pods(10, gpus=8), "low")
        workspace.submit(elastic_of(entry.kind, document, 3))
        first = {pod.uid for pod in entry.runs(workspace, "gang", 8)}
        workspace.job("high", Pods(2, gpus=8), priority_class="high")
        workspace.until_state("high", "Running")
        left = workspace.running("gang")
        assert len(left) == 6
        assert {pod.uid for pod in left} < first, "the other pods run on"
        leaving = max(pod.rank for pod in left if pod.rank is not None) + 1
        history = workspace.history(f"gang_{leaving}")
        assert any(line["toState"] == "Evicting" for line in history), "the highest ranks leave"
        assert workspace.workload("gang")["evictions"] == 0
        workspace.client.delete(workspace.made[1], propagationPolicy="Background")
        entry.runs(workspace, "gang", 8)
        if "finish" not in entry.without:
            entry.finish(workspace, "gang")
            workspace.until_state("gang", "Finished")


@feature("finish")
def test_its_end_frees_its_gpus(installation: Installation, entry: Entry) -> None:
    with installation.workspace(128) as workspace:
        entry.submit(workspace, "gang", 16)
        entry.runs(workspace, "gang", 16)
        entry.submit(workspace, "next", 16)
        until_reason(workspace, "next", "Pending", "WaitingForQuota")
        entry.finish(workspace, "gang")
        done = workspace.until_state("gang", "Finished")
        assert (done["reason"]["code"], done["attempt"]) == ("Succeeded", 1)
        workspace.until_state("next", "Running")
