"""RuntimeClasses: the overhead, the node labels and the tolerations that they add to pods, on a real Postgres with the API server double."""

from __future__ import annotations

from typing import Any

import pytest

from queuectl.domain.ledger import State
from queuectl.domain.quantity import CPU
from queuectl.domain.reasons import Code
from tests.control.alike import ALIKE
from tests.control.rig import Rig, gang, live, rig
from tests.control.test_lifecycle import until_reason

KINDS = pytest.mark.parametrize("kind", ALIKE)
SCHEDULING = {
    "nodeSelector": {"kata": "yes"},
    "tolerations": [{"key": "kata", "operator": "Exists", "effect": "NoSchedule"}],
}


def runtime_class(**fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": "kata"}, "handler": "kata", **fields}


def in_a_vm(kind: str, name: str, pods: int, **spec: Any) -> Any:
    """A gang whose templates name the RuntimeClass."""
    document: Any = gang(kind, name, pods)
    parts = document["spec"]
    parts = [parts] if kind == "Job" else parts["pytorchReplicaSpecs"].values()
    for part in parts:
        part["template"]["spec"] |= {"runtimeClassName": "kata", **spec}
    return document


def prepare(world: Rig, *names: str) -> None:
    """Keep these nodes for pods of the RuntimeClass."""
    for node in world.cluster.server.all("nodes"):
        if node["metadata"]["name"] in names:
            taint = {"key": "kata", "value": "yes", "effect": "NoSchedule"}

            def change(found: Any, taint: Any = taint) -> None:
                found["metadata"]["labels"]["kata"] = "yes"
                found["spec"]["taints"] = [taint]

            world.cluster.server.edit("nodes", node, change)


@KINDS
async def test_a_gang_is_planned_with_the_pods_that_the_api_server_creates(
    database_url: str, kind: str
) -> None:
    async with rig(database_url, 4) as world:
        prepare(world, "n1", "n3")
        more = {"overhead": {"podFixed": {"cpu": "2"}}, "scheduling": SCHEDULING}
        world.cluster.server.create("runtimeclasses", runtime_class(**more))
        uid = world.cluster.submit(in_a_vm(kind, "train", 2))
        entry = await world.until_state(uid, State.RUNNING)
        pods = live(world.cluster.pods_of(uid))
        assert {pod.node for pod in pods} == {"n1", "n3"}
        assert entry.planned is not None
        assert {pod.requests[CPU] for pod in pods} == {
            requests[CPU] for requests in entry.planned.requests.values()
        }
        assert entry.attempt == 1


@KINDS
async def test_a_gang_waits_until_its_runtime_class_exists(database_url: str, kind: str) -> None:
    async with rig(database_url, 2) as world:
        uid = world.cluster.submit(in_a_vm(kind, "train", 2))
        held = await until_reason(world, uid, State.PENDING, Code.MISCONFIGURED)
        assert "runtimeClassName: RuntimeClass kata does not exist" in held.reason.message
        assert world.cluster.pods_of(uid) == [], "none of its pods was created"
        other = world.cluster.submit(gang("Job", "other", 1))
        await world.until_state(other, State.RUNNING)
        world.cluster.finish(other)
        made = world.cluster.server.create("runtimeclasses", runtime_class())
        assert (await world.until_state(uid, State.RUNNING)).attempt == 1
        world.cluster.server.remove("runtimeclasses", made)
        later = world.cluster.submit(in_a_vm(kind, "later", 1))
        await until_reason(world, later, State.PENDING, Code.MISCONFIGURED)
        assert (await world.until_state(uid, State.RUNNING)).attempt == 1, "its pods exist"


async def test_a_pending_gang_is_planned_with_the_current_runtime_class(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        made = world.cluster.server.create(
            "runtimeclasses", runtime_class(overhead={"podFixed": {"cpu": "64"}})
        )
        uid = world.cluster.submit(in_a_vm("Job", "train", 1))
        await until_reason(world, uid, State.PENDING, Code.SHAPE_NEVER_FITS)
        world.cluster.server.edit("runtimeclasses", made, lambda d: d.pop("overhead"))
        assert (await world.until_state(uid, State.RUNNING)).attempt == 1


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"nodeSelector": {"kata": "no"}}, "nodeSelector[kata]: 'no' conflicts with 'yes'"),
        ({"overhead": {"cpu": "3"}}, "overhead: differs from RuntimeClass kata"),
    ],
)
async def test_a_gang_whose_pods_would_be_refused_does_not_start(
    database_url: str, spec: dict[str, Any], said: str
) -> None:
    async with rig(database_url, 2) as world:
        prepare(world, "n1")
        more = {"overhead": {"podFixed": {"cpu": "2"}}, "scheduling": SCHEDULING}
        world.cluster.server.create("runtimeclasses", runtime_class(**more))
        uid = world.cluster.submit(in_a_vm("Job", "train", 1, **spec))
        held = await until_reason(world, uid, State.PENDING, Code.MISCONFIGURED)
        assert f"spec.template.spec.{said}" in held.reason.message
        assert world.cluster.pods_of(uid) == []


async def test_a_gang_runs_on_through_a_restart_of_the_controller(database_url: str) -> None:
    """Its template does not tolerate the taints of its nodes."""
    async with rig(database_url, 3) as world:
        prepare(world, "n0", "n1")
        world.cluster.server.create("runtimeclasses", runtime_class(scheduling=SCHEDULING))
        uid = world.cluster.submit(in_a_vm("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)
        await world.restart()
        await world.until_state(world.cluster.submit(gang("Job", "later", 1)), State.RUNNING)
        assert (await world.until_state(uid, State.RUNNING)).attempt == 1
