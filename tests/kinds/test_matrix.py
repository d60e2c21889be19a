"""Each cell of the matrix of kinds and features: `make test-kinds` runs them and writes docs/reference/kinds.md."""

from __future__ import annotations

import pytest

from queuectl.demo.scenario import PodSetManifest
from queuectl.objects import keys
from tests.kinds.entries import ENTRIES
from tests.kinds.entry import FEATURES, Entry, Gang, racks
from tests.support.elastic import elastic_of
from tests.system.actions import without_node
from tests.system.installation import RACK, Installation

pytestmark = [pytest.mark.system, pytest.mark.kinds, pytest.mark.timeout(1500)]


def feature(name: str) -> pytest.MarkDecorator:
    """The kinds with this feature. The id of a test is the kind and the feature."""
    assert name in FEATURES
    entries = [one for one in ENTRIES if name not in one.without]
    return pytest.mark.parametrize("entry", entries, ids=[f"{one.kind}-{name}" for one in entries])


@feature("admit")
def test_it_waits_suspended_or_gated_and_starts_with_all_its_pods(
    installation: Installation, entry: Entry
) -> None:
    with installation.workspace(64) as workspace:
        # A gang waits for room for all its pods. Where each pod is a gang, all of them wait only without any room.
        workspace.job("first", PodSetManifest(8 if entry.alone else 4, gpus=8))
        workspace.until_state("first", "Running")
        gang = entry.submit(workspace, "gang", 8)
        assert gang.created_held
        gang.until_waiting()
        assert gang.released == []
        workspace.client.delete(workspace.made[0], propagationPolicy="Background")
        gang.runs()
        assert gang.resumed


@feature("place")
def test_all_its_pods_are_in_the_rack_that_it_requires(
    installation: Installation, entry: Entry
) -> None:
    with installation.workspace(128) as workspace:
        workspace.job("there", PodSetManifest(1, gpus=8))
        workspace.until_state("there", "Running")
        gang = entry.submit(workspace, "gang", 4, required=RACK)
        assert len({*racks(gang.runs())}) == 1


@feature("preempt")
def test_it_is_evicted_for_a_gang_of_higher_priority(
    installation: Installation, entry: Entry
) -> None:
    with installation.workspace(128) as workspace:
        low = entry.submit(workspace, "low", 16, priority="low")
        low.runs()
        names = low.names
        entry.submit(workspace, "high", _all_of(low), priority="high").until("Running")
        low.until_stopped()
        for name in names:
            line = next(one for one in workspace.history(name) if one["toState"] == "Evicting")
            assert line["reason"]["details"]["lostGpuSeconds"] > 0
            assert workspace.workload(name)["evictions"] == 1


def _all_of(victim: Gang) -> int:
    """The number of pods in whose favor all pods of a victim on 16 nodes are evicted. A gang is evicted as a whole."""
    return victim.pods if victim.entry.alone else victim.pods // 2


@feature("requeue")
def test_it_runs_again_before_later_gangs_of_its_priority(
    installation: Installation, entry: Entry
) -> None:
    with installation.workspace(128, strategy="StrictFIFO") as workspace:
        low = entry.submit(workspace, "low", 16, priority="low")
        low.runs()
        # It takes all nodes: a later gang has no room, even when the pods of the first do not exist yet.
        high = entry.submit(workspace, "high", 16, priority="high")
        later = entry.submit(workspace, "later", 4, priority="low")
        high.until("Running")
        low.create_again()
        low.until_whole()
        high.remove()
        assert {pod.attempt for pod in low.runs()} == {2}
        assert {one["attempt"] for one in low.until("Running")} == {2}
        later.until("Pending")


@feature("repair")
def test_a_lost_pod_takes_its_slot_again_and_a_lost_node_is_replaced(
    installation: Installation, entry: Entry
) -> None:
    with installation.workspace(128) as workspace:
        gang = entry.submit(workspace, "gang", 4)
        gang.runs()
        lost = gang.losable()[0]
        slots = gang.slots()
        gang.lose(lost)
        workspace.until_running("gang", 4, lambda p: p.uid != lost.uid, "four run again")
        if all(rank is not None for _, rank in slots):
            assert gang.slots() == slots

        if entry.outlives_deletion:
            _lose_node(installation, gang)
        assert {one["attempt"] for one in gang.until("Running")} == {1}


def _lose_node(installation: Installation, gang: Gang) -> None:
    """Lose the node of a pod, and wait until a new pod runs on another node."""
    workspace = gang.workspace
    moved = gang.losable()[-1]
    stay = {p.uid for p in workspace.running("gang")} - {moved.uid}
    assert moved.node is not None
    path = f"/api/v1/namespaces/{workspace.namespace}/pods/{moved.name}"
    with without_node(installation, moved.node):
        workspace.client.delete(path, missing_ok=True, gracePeriodSeconds=0)
        gang.create_again()
        workspace.until_running("gang", 4, lambda p: p.node != moved.node, "all run elsewhere")
        assert stay <= {p.uid for p in workspace.running("gang")}


@feature("ranks")
def test_its_ranks_are_in_the_order_of_the_racks(installation: Installation, entry: Entry) -> None:
    with installation.workspace(128) as workspace:
        pods = entry.submit(workspace, "gang", 12).runs()
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
        workspace.job("first", PodSetManifest(8, gpus=8))
        workspace.until_state("first", "Running")
        document = entry.make("gang", workspace.namespace, PodSetManifest(16, gpus=8), None)
        assert isinstance(document, dict)
        least = {keys.PREFIX + keys.MIN_PARALLELISM: "4"}
        document["metadata"].setdefault("annotations", {}).update(least)
        workspace.submit(document)
        workspace.until_state("gang", "Running")
        workspace.until_running("gang", 8, lambda _: True, "as many run as there is room for")


@feature("elastic")
def test_it_grows_where_there_is_room_and_shrinks_for_a_gang_of_higher_priority(
    installation: Installation, entry: Entry
) -> None:
    with installation.workspace(64) as workspace:
        document = entry.make("gang", workspace.namespace, PodSetManifest(10, gpus=8), "low")
        assert isinstance(document, dict)
        gang = entry.create(workspace, "gang", 8, [elastic_of(entry.kind, document, 3)])
        first = {pod.uid for pod in gang.runs()}
        workspace.job("high", PodSetManifest(2, gpus=8), priority_class="high")
        workspace.until_state("high", "Running")
        left = workspace.running("gang")
        assert len(left) == 6
        assert {pod.uid for pod in left} < first, "the other pods run on"
        leaving = max(pod.rank for pod in left if pod.rank is not None) + 1
        history = workspace.history(f"gang_{leaving}")
        assert any(line["toState"] == "Evicting" for line in history), "the highest ranks leave"
        assert workspace.workload("gang")["evictions"] == 0
        workspace.client.delete(workspace.made[1], propagationPolicy="Background")
        gang.runs()
        if "finish" not in entry.without:
            gang.finish()
            gang.until("Finished")


@feature("finish")
def test_its_end_frees_its_gpus(installation: Installation, entry: Entry) -> None:
    with installation.workspace(128) as workspace:
        gang = entry.submit(workspace, "gang", 16)
        gang.runs()
        after = entry.submit(workspace, "next", 16)
        after.until_waiting()
        gang.finish()
        ends = {(one["reason"]["code"], one["attempt"]) for one in gang.until("Finished")}
        assert ends == {("Succeeded", 1)}
        after.until("Running")
