"""One node is cordoned and drained while gangs run: its pods are placed elsewhere, and nothing is evicted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from queuectl.domain.ledger import Document, Purpose, State
from tests.control.alike import ALIKE
from tests.control.rig import Rig, gang, live, rig
from tests.control.test_lifecycle import starts_within
from tests.control.test_refused_writes import purpose
from tests.doubles.cluster import Written


@pytest.mark.parametrize("kind", ALIKE)
@pytest.mark.parametrize("slowly", [False, True])
async def test_pods_of_a_drained_node_are_placed_on_other_nodes(
    database_url: str, kind: str, slowly: bool
) -> None:
    """``slowly``: the evicted pod has a long termination."""
    async with rig(database_url, 3) as world:
        uid = world.cluster.submit(gang(kind, "train", 2))
        await world.until_state(uid, State.RUNNING)
        pod = live(world.cluster.pods_of(uid))[0]
        assert pod.node is not None
        world.cluster.cordon(pod.node)
        world.cluster.controllers.hold_ends = slowly
        server = world.cluster.server
        server.delete("pods", server.get("pods", "default", pod.name))
        if slowly:
            await world.until(
                lambda: any(p.terminating for p in world.cluster.pods_of(uid)), "it terminates"
            )
            world.cluster.controllers.hold_ends = False

        def complete() -> bool:
            running = [p for p in live(world.cluster.pods_of(uid)) if p.ready]
            return len(running) == 2 and pod.node not in {p.node for p in running}

        await world.until(complete, "all its pods run, none on the cordoned node")
        entry = await world.until_entry(uid, lambda e: e.unready_since is None, "it is ready")
        assert (entry.state, entry.evictions, entry.failures) == (State.RUNNING, 0, 0)
        events = [line.event for line in await world.store.history(uid)]
        assert "Repaired" in events


def taint(world: Rig, node: str) -> None:
    world.cluster.taint(node, "node.kubernetes.io/memory-pressure", "NoSchedule")


def lose_a_gpu(world: Rig, node: str) -> None:
    def fewer(document: Document) -> None:
        document["status"]["allocatable"]["nvidia.com/gpu"] = "7"

    world.cluster.server.edit("nodes", world.cluster.server.get("nodes", "", node), fewer)


@pytest.mark.parametrize("close", [taint, lose_a_gpu])
async def test_a_pod_that_fails_on_a_node_that_takes_no_new_pods_runs_on_another_node(
    database_url: str, monkeypatch: pytest.MonkeyPatch, close: Callable[[Rig, str], None]
) -> None:
    async with rig(database_url, 3) as world:
        world.settings = world.settings.model_copy(update={"unschedulable_seconds": 0.5})
        # The check of each step would report that its pods request more GPUs than the node has.
        monkeypatch.setattr(world, "check", lambda: None)
        uid = world.cluster.submit(gang("Job", "train", 2))
        await world.until_state(uid, State.RUNNING)
        pod = live(world.cluster.pods_of(uid))[0]
        assert pod.node is not None
        close(world, pod.node)
        world.cluster.fail_pod(pod.name)

        def replaced() -> bool:
            running = [p for p in live(world.cluster.pods_of(uid)) if p.ready]
            return len(running) == 2 and pod.node not in {p.node for p in running}

        await world.until(replaced, "its pods run, none on that node")
        entry = await world.until_entry(uid, lambda e: e.unready_since is None, "it is ready")
        assert (entry.state, entry.evictions, entry.failures) == (State.RUNNING, 0, 0)


async def test_a_node_that_was_cordoned_during_a_start_is_used_again(database_url: str) -> None:
    """The gang needs both nodes. kube-scheduler refuses a pod on the cordoned one."""
    async with rig(database_url, 2) as world:
        await world.store.put_config(starts_within(300))
        world.settings = world.settings.model_copy(update={"unschedulable_seconds": 0.5})

        def late(write: Written) -> int | None:
            if purpose(write) is Purpose.PIN:
                world.cluster.refuses = lambda _: None
                world.cluster.cordon("n1")
            return None

        world.cluster.refuses = late
        uid = world.cluster.submit(gang("Job", "train", 2))
        entry = await world.until_state(uid, State.BACKOFF)
        assert entry.excluded == ()
        world.cluster.cordon("n1", unschedulable=False)
        await world.until_state(uid, State.RUNNING)


async def test_a_refusal_of_kube_scheduler_counts_from_its_first_observation(
    database_url: str,
) -> None:
    """The pods were gated for longer than a refusal is tolerated."""
    async with rig(database_url, 1) as world:
        world.settings = world.settings.model_copy(update={"unschedulable_seconds": 30.0})
        now = [1_800_000_000.0]
        world.cluster.server.clock = lambda: now[0]
        world.clock = lambda: now[0]
        held: list[str] = []

        def late(write: Written) -> int | None:
            if purpose(write) is Purpose.PIN and not held:
                held.append(write.name)
                now[0] += 40.0
                world.cluster.cordon("n0")  # a temporary refusal
            return None

        world.cluster.refuses = late
        uid = world.cluster.submit(gang("Job", "train", 1))
        await world.until(
            lambda: any(p.unschedulable and not p.gated for p in world.cluster.pods_of(uid)),
            "kube-scheduler refuses it",
        )
        await world.until_entry(uid, lambda e: e.state is State.STARTING, "it gets time")
        world.cluster.cordon("n0", unschedulable=False)
        entry = await world.until_state(uid, State.RUNNING)
        assert entry.evictions == 0
