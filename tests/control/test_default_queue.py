"""LocalQueue ``default``: the namespace is labeled, and jobs without a queue are queued there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from queuectl.control.leader.periodic import keep_labels
from queuectl.demo import scenario as m
from queuectl.domain.errors import WriteRefused
from queuectl.domain.ledger import State
from queuectl.domain.queues import LocalQueue, QueueConfig
from queuectl.domain.records import NamespaceRecord, Upserted
from queuectl.objects.keys import DEFAULT_QUEUE_LABEL
from queuectl.state.defaults import mislabeled
from queuectl.state.mirror import Mirror
from tests.control.alike import ALIKE
from tests.control.rig import Rig, gang, rig
from tests.doubles.cluster import FakeCluster
from tests.support.virtualtime import run

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


class Denying(FakeCluster):
    """Notes the times of writes to namespaces, and refuses them."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[float] = []

    async def patch_namespace(self, name: str, patch: Mapping[str, Any]) -> None:
        self.asked.append(asyncio.get_running_loop().time())
        raise WriteRefused("a policy denies the label")


def test_a_refused_label_is_sent_again_ever_more_rarely_and_logged_once() -> None:
    mirror, cluster = Mirror({"jobs": "Job"}), Denying()
    mirror.apply([Upserted(NamespaceRecord("a", 1))])

    async def main() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(600.0):
                await keep_labels(cluster, mirror, lambda: HAS)

    with capture_logs() as logged:
        run(main())
    pauses = [after - before for before, after in pairwise(cluster.asked)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(60.0, abs=1.0)
    assert [line["event"] for line in logged] == ["namespace_not_labeled"]
