"""LocalQueue ``default``: the namespace is labeled, and jobs without a queue are queued there."""

from __future__ import annotations

from typing import Any

import pytest

from queuectl.demo import scenario as m
from queuectl.domain.ledger import State
from queuectl.domain.queues import LocalQueue, QueueConfig
from queuectl.domain.records import NamespaceRecord
from queuectl.objects.keys import DEFAULT_QUEUE_LABEL
from queuectl.state.defaults import mislabeled
from tests.control.alike import ALIKE
from tests.control.rig import Rig, gang, rig

YES = ((DEFAULT_QUEUE_LABEL, "true"),)
HAS = QueueConfig(local_queues={("a", "default"): LocalQueue("a", "default", "cq")})
OTHER = QueueConfig(local_queues={("a", "main"): LocalQueue("a", "main", "cq")})


@pytest.mark.parametrize(
    ("config", "labels", "wrong"),
    [
        (HAS, (), [("a", "true")]),
        (HAS, YES, []),
        (HAS, ((DEFAULT_QUEUE_LABEL, "yes"),), [("a", "true")]),
        (OTHER, (), []),
        (OTHER, YES, [("a", None)]),
    ],
)
def test_the_label_follows_the_queue(
    config: QueueConfig, labels: tuple[tuple[str, str], ...], wrong: list[Any]
) -> None:
    assert list(mislabeled([NamespaceRecord("a", 1, labels)], config)) == wrong


def labeled(world: Rig) -> bool:
    labels = world.cluster.server.get("namespaces", "", "default")["metadata"].get("labels", {})
    return DEFAULT_QUEUE_LABEL in labels


def unlabeled_gang(kind: str, name: str) -> dict[str, Any]:
    document = dict(gang(kind, name, 2))
    document["metadata"]["labels"] = {}
    return document


@pytest.mark.parametrize("kind", ALIKE)
async def test_a_job_without_a_queue_is_queued_in_the_default_one(
    database_url: str, kind: str
) -> None:
    async with rig(database_url, 2) as world:
        await world.store.put_config(m.local_queue("default", "default", "pool"))
        await world.until(lambda: labeled(world), "the namespace is labeled")
        uid = world.cluster.submit(unlabeled_gang(kind, "plain"))
        entry = await world.until_state(uid, State.RUNNING)
        assert (entry.queue, entry.cluster_queue) == ("default", "pool")


async def test_the_label_is_removed_with_the_queue(database_url: str) -> None:
    async with rig(database_url, 2) as world:
        namespace = world.cluster.server.get("namespaces", "", "default")
        world.cluster.server.edit(
            "namespaces",
            namespace,
            lambda d: d["metadata"].update(labels=dict(YES) | {"team": "x"}),
        )
        await world.until(lambda: not labeled(world), "the label is removed")
        namespace = world.cluster.server.get("namespaces", "", "default")
        assert namespace["metadata"]["labels"] == {"team": "x"}, "others stay"
