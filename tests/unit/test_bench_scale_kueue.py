"""Kueue as a system of the benchmark at size, and the loads of the rows about queues."""

from __future__ import annotations

import json

import pytest

from tests.bench.kueue.peer import API, of_chart
from tests.bench.scale.fleet import NEWEST, Fleet
from tests.bench.scale.gangs import Gang
from tests.bench.scale.kueue import Kueue, configured, errors_in
from tests.bench.scale.rows_queues import SHAPES, backlog, edits
from tests.bench.scale.systems import SYSTEMS

RACK = "topology.queuectl.dev/rack"


def test_a_job_has_the_keys_of_kueue_and_keeps_those_of_nodes_and_pods() -> None:
    gang = Gang("g", "team", 2, 1, product="H100", required=RACK, seconds=3)
    job = Kueue("kueue-default").job(gang)
    assert job["metadata"]["labels"] == {
        "kueue.x-k8s.io/queue-name": "gangs",
        "kueue.x-k8s.io/priority-class": "low",
    }
    template = job["spec"]["template"]
    assert template["metadata"]["annotations"] == {
        "kueue.x-k8s.io/podset-required-topology": RACK,
        "kwok.queuectl.dev/run-seconds": "3",
    }
    assert template["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "H100"}


def test_the_quota_tree_is_that_of_queuectl_in_objects_of_kueue() -> None:
    documents = [configured(one) for one in Fleet(100).configuration()]
    assert {one["apiVersion"] for one in documents} == {API}
    [levels] = [one["spec"]["levels"] for one in documents if one["kind"] == "Topology"]
    assert {"nodeLabel": RACK} in levels


@pytest.mark.parametrize("name", ["kueue-default", "kueue-tuned"])
def test_a_configuration_elects_a_leader_and_queues_jobs(name: str) -> None:
    system = SYSTEMS[name]()
    assert system.name == name
    settings = system.settings()
    assert settings["client limits"] == (
        "qps 300, burst 500" if name == "kueue-default" else "none"
    )


def test_the_webhooks_of_frameworks_that_are_off_are_left_out() -> None:
    names = ("mpod.kb.io", "vstatefulset.kb.io", "mjob.kb.io", "vpodgroup.kb.io")
    registration = {"kind": "X", "webhooks": [{"name": name} for name in names]}
    kept = of_chart(registration, ["batch/job", "statefulset"])
    assert [one["name"] for one in kept["webhooks"]] == list(names[1:])
    assert of_chart(registration, ["pod", "deployment", "statefulset"]) == registration


def test_remarks_are_errors_of_the_log_without_conflicts() -> None:
    def line(message: str, error: str) -> str:
        return json.dumps({"level": "error", "msg": message, "error": error})

    conflict = line(
        "Reconciler error", "Operation cannot be fulfilled: the object has been modified"
    )
    lines = [
        conflict,
        "panic: nil",
        line("a", "x"),
        line("b", "y"),
        line("b", "y"),
        '{"msg": "fine"}',
    ]
    assert errors_in(lines) == ["log of Kueue: 2 × b: y", "log of Kueue: 1 × a: x"]


def test_a_backlog_has_all_shapes_and_no_free_gpu() -> None:
    gangs = backlog(Fleet(2500), 0, 2 * SHAPES)
    assert len({(gang.pods, gang.gpus) for gang in gangs}) == SHAPES
    assert {gang.product for gang in gangs} == {NEWEST.product}
    assert len({gang.name for gang in gangs}) == 2 * SHAPES


def test_each_edit_changes_its_queue() -> None:
    fleet = Fleet(2500)
    teams = len(fleet.teams())
    seen = {one["metadata"]["name"]: one for one in edits(fleet, teams)}
    assert len(seen) == teams
    documents = [json.dumps(one) for one in edits(fleet, 3 * teams)]
    assert all(documents[i] != documents[i + teams] for i in range(2 * teams))
