"""The scenario has the gangs that the demo needs, and its documents are those that the project's own readers accept."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import msgspec
import pytest

from queuectl.demo import scenario
from queuectl.demo.scenario import (
    GPUS,
    LIMITS,
    NODES,
    QUOTAS,
    Expected,
    Gang,
    PodSetManifest,
    SubmissionPhase,
    configuration,
    job,
    pytorchjob,
)
from queuectl.demo.scenario import (
    gangs as all_gangs,
)
from queuectl.domain.jobs import JobRecord
from queuectl.domain.quantity import CPU, GPU, MEMORY
from queuectl.domain.queues import IdleReclaim, WithinClusterQueue
from queuectl.localcluster.exporter import PROFILE
from queuectl.localcluster.nodes import BLOCK, RACK
from queuectl.objects.configuration.queue_config import build, validate
from queuectl.objects.kinds import KINDS

RACK_GPUS = NODES.hosts_per_rack * NODES.gpus
GANGS = all_gangs()


def record(document: dict[str, object]) -> JobRecord:
    kind = KINDS[str(document["kind"])]
    return kind.read(msgspec.convert(document, kind.wire, strict=False), strict=True)


@pytest.mark.parametrize("gang", GANGS, ids=lambda gang: gang.name)
def test_every_gang_is_read_as_meant(gang: Gang):
    read = record(gang.document)
    assert read.error is None
    assert read.gpus == gang.gpus
    assert (read.namespace, read.queue) in LIMITS
    required = {
        p.topology.level for p in read.podsets if p.topology and p.topology.mode == "Required"
    }
    assert required == ({gang.within} if gang.within else set())


@pytest.mark.parametrize("document", configuration(), ids=lambda one: one["kind"])
def test_configuration_is_honored_without_a_warning(document: dict[str, object]):
    _, warnings = validate(scenario.with_idle_reclaim(document))
    assert not warnings


def test_quotas_share_out_the_whole_cluster():
    assert GPUS == 512
    assert sum(QUOTAS.values()) == GPUS


def test_names_are_unique_and_sizes_span_1_to_256():
    assert len({gang.ref for gang in GANGS}) == len(GANGS)
    sizes = {gang.gpus for gang in GANGS}
    assert (min(sizes), max(sizes)) == (1, 256)
    assert {gang.kind for gang in GANGS} == {"Job", "PyTorchJob"}


def test_the_burst_is_more_than_fits_at_once():
    for team, quota in QUOTAS.items():
        assert sum(gang.gpus for gang in GANGS if gang.namespace == team) > quota


def test_one_gang_has_podsets_of_different_shapes():
    shapes = [{podset.shape for podset in record(gang.document).podsets} for gang in GANGS]
    assert any(len(one) == 2 for one in shapes)


def test_gangs_ask_for_a_rack_and_for_a_block():
    assert {gang.within for gang in GANGS} == {None, RACK, BLOCK}


def test_only_one_gang_never_fits_and_not_for_want_of_quota():
    [wide] = [gang for gang in GANGS if gang.expected is Expected.NEVER_FITS]
    assert wide.within == RACK
    assert RACK_GPUS < wide.gpus <= QUOTAS[wide.namespace]


def test_the_urgent_gang_fits_only_if_one_of_the_first_two_is_evicted():
    [urgent] = [gang for gang in GANGS if gang.phase is SubmissionPhase.URGENT]
    first = [gang for gang in GANGS if gang.phase is SubmissionPhase.FIRST]
    left = QUOTAS[urgent.namespace] - sum(gang.gpus for gang in first)
    # Not even all others of the team together could make room.
    assert urgent.gpus > left
    assert all(left + gang.gpus >= urgent.gpus for gang in first)
    assert {gang.namespace for gang in first} == {urgent.namespace}


def test_the_two_candidates_differ_in_what_their_gpus_do_alone():
    busy, idle = (deepcopy(g.document) for g in GANGS if g.phase is SubmissionPhase.FIRST)
    assert busy["metadata"].pop("name") != idle["metadata"].pop("name")
    profiles = [d["spec"]["template"]["metadata"]["annotations"].pop(PROFILE) for d in (busy, idle)]
    assert profiles == ["busy=0.9", "idle"]
    assert busy == idle


def test_idleness_is_judged_in_seconds_only_idle_gangs_are_preempted_and_nothing_else_is_changed():
    meant = build(configuration(), 1)
    changed = build(map(scenario.with_idle_reclaim, configuration()), 1)
    assert {queue.idle_reclaim.window for queue in changed.cluster_queues.values()} == {4.0}
    within = {queue.within_cluster_queue for queue in changed.cluster_queues.values()}
    assert within == {WithinClusterQueue.NEVER}
    calm = {
        name: replace(
            queue,
            idle_reclaim=IdleReclaim(),
            within_cluster_queue=meant.cluster_queues[name].within_cluster_queue,
        )
        for name, queue in changed.cluster_queues.items()
    }
    assert calm == dict(meant.cluster_queues)
    others = [one for one in configuration() if one["kind"] != "ClusterQueue"]
    assert list(map(scenario.with_idle_reclaim, others)) == others


def test_a_job_without_a_queue_is_not_managed():
    assert record(job("plain", "team", None, PodSetManifest(2, 1))).queue is None


def test_pods_say_what_each_of_them_needs():
    pods = PodSetManifest(3, 4, "16", "64Gi", required=RACK, group="all")
    document = pytorchjob(
        "two", "team", "queue", master=PodSetManifest(1, 0, group="all", required=RACK), worker=pods
    )
    master, worker = record(document).podsets
    assert (worker.count, worker.group) == (3, "all")
    needs = worker.shape.requests
    assert (needs[GPU], needs[CPU], needs[MEMORY]) == (4, 16000, 64 << 30)
    assert master.shape.requests[GPU] == 0


def test_pods_run_for_their_stated_time_or_until_they_are_deleted():
    def annotations(seconds: float | None) -> dict[str, str]:
        document = job("one", "team", "queue", PodSetManifest(), seconds=seconds)
        return dict(document["spec"]["template"]["metadata"]["annotations"])

    assert annotations(2.5) == {"kwok.queuectl.dev/run-seconds": "2.5"}
    assert annotations(None) == {}
