"""Admission plugins that the Configuration declares, on a real Postgres with the API server double."""

from __future__ import annotations

from typing import Any

from queuectl.domain.ledger import State
from queuectl.domain.reasons import Code
from tests.control.rig import gang, rig
from tests.control.test_lifecycle import rules, until_reason

OWN = "scheduler.alpha.kubernetes.io/node-selector"


def tolerating(pod: Any) -> None:
    """The plugin ExtendedResourceToleration."""
    added = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    pod["spec"].setdefault("tolerations", []).append(added)


async def test_a_pending_gang_starts_when_a_plugin_is_declared(database_url: str) -> None:
    async with rig(database_url, 1) as world:
        taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
        for node in world.cluster.server.all("nodes"):
            world.cluster.server.edit("nodes", node, lambda d: d["spec"].update(taints=[taint]))
        world.cluster.server.webhooks.append(tolerating)
        uid = world.cluster.submit(gang("Job", "train", 1))
        await until_reason(world, uid, State.PENDING, Code.SHAPE_NEVER_FITS)
        plugins = ["ExtendedResourceToleration"]
        await world.store.put_config(rules(queuectl={"admissionPlugins": plugins}))
        assert (await world.until_state(uid, State.RUNNING)).attempt == 1


async def test_a_pending_gang_uses_the_nodes_that_its_namespace_selects(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        await world.store.put_config(rules(queuectl={"admissionPlugins": ["PodNodeSelector"]}))
        [space] = [
            n for n in world.cluster.server.all("namespaces") if n["metadata"]["name"] == "default"
        ]

        def select(pool: str) -> None:
            noted = {OWN: f"kubernetes.io/hostname={pool}"}
            world.cluster.server.edit(
                "namespaces", space, lambda d: d["metadata"].update(annotations=noted)
            )

        select("n9")
        uid = world.cluster.submit(gang("Job", "train", 1))
        await until_reason(world, uid, State.PENDING, Code.SHAPE_NEVER_FITS)
        select("n1")
        await world.until_state(uid, State.RUNNING)
        assert {pod.node for pod in world.cluster.pods_of(uid)} == {"n1"}
