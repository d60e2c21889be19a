"""Pods that a webhook makes larger than their template, on a real Postgres with the API server double."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from queuectl.domain.arrays import index_uid
from queuectl.domain.commands import Action
from queuectl.domain.ledger import State
from queuectl.domain.quantity import CPU
from queuectl.domain.reasons import Code
from tests.control.alike import ALIKE
from tests.control.rig import Rig, gang, live, rig
from tests.control.test_arrays import array
from tests.control.test_lifecycle import starts_within, until_reason

KINDS = pytest.mark.parametrize("kind", ALIKE)


def sidecar(pod: Any, cpu: str = "100m") -> None:
    """Add a container, as the webhook of a service mesh."""
    if pod["metadata"]["name"].startswith("train"):
        proxy = {"name": "istio-proxy", "resources": {"requests": {"cpu": cpu}}}
        pod["spec"]["containers"].append(proxy)


def requested(world: Rig, uid: str) -> set[int]:
    return {pod.requests[CPU] for pod in live(world.cluster.pods_of(uid))}


async def messages(world: Rig, uid: str) -> list[str]:
    return [line.reason.message for line in await world.store.history(uid)]


@KINDS
async def test_a_gang_with_larger_pods_is_planned_again_with_their_size(
    database_url: str, kind: str
) -> None:
    async with rig(database_url, 2) as world:
        world.cluster.server.webhooks.append(sidecar)
        uid = world.cluster.submit(gang(kind, "train", 2))
        entry = await world.until_entry(
            uid, lambda entry: entry.state is State.RUNNING and entry.attempt == 2, "it runs"
        )
        assert entry.planned is not None
        assert requested(world, uid) == {each[CPU] for each in entry.planned.requests.values()}
        said = await messages(world, uid)
        assert any(
            "container istio-proxy, which is not in its template, requests 100m cpu" in text
            for text in said
        )
        assert not any("the next start is tried in" in text for text in said), "it does not wait"
        other = world.cluster.submit(gang(kind, "other", 1))
        await until_reason(world, other, State.PENDING, Code.WAITING_FOR_QUOTA)


async def test_the_indexes_of_an_array_are_planned_again_with_the_size_of_their_pods(
    database_url: str,
) -> None:
    async with rig(database_url, 2) as world:
        world.cluster.server.webhooks.append(sidecar)
        uid = world.cluster.submit(array("train", 2, 2))
        for number in range(2):
            entry = await world.until_entry(
                index_uid(uid, number), lambda entry: entry.state is State.RUNNING, "it runs"
            )
            assert entry.attempt <= 2


async def test_a_gang_that_does_not_fit_with_its_larger_pods_stays_pending(
    database_url: str,
) -> None:
    async with rig(database_url, 1) as world:
        world.cluster.server.webhooks.append(lambda pod: sidecar(pod, "64"))
        uid = world.cluster.submit(gang("Job", "train", 1))
        await until_reason(world, uid, State.PENDING, Code.SHAPE_NEVER_FITS)
        assert world.cluster.pods_of(uid) == []


async def test_a_gang_whose_pods_grow_with_each_start_is_deactivated(database_url: str) -> None:
    async with rig(database_url, 1) as world:
        await world.store.put_config(starts_within(60))
        sizes = itertools.count(1)
        world.cluster.server.webhooks.append(lambda pod: sidecar(pod, str(next(sizes))))
        uid = world.cluster.submit(gang("Job", "train", 1))
        entry = await until_reason(world, uid, State.DEACTIVATED, Code.REQUEUING_LIMIT)
        assert entry.attempt == 3
        assert "after 3 failed starts in a row: pod train-" in entry.reason.message
        assert "container istio-proxy" in entry.reason.message
        world.cluster.server.webhooks.clear()
        await world.ask(uid, Action.ACTIVATE)
        await world.until_state(uid, State.RUNNING)
