"""Kinds of which each part is a gang: the number of parts changes while they run, and those run for which there is room."""

from __future__ import annotations

from typing import Final

import pytest

from queuectl.demo.scenario import Document, PodSetManifest
from tests.kinds.entry import Make
from tests.kinds.pod_entries import app, array, leader_workers
from tests.system.installation import Installation

pytestmark = [pytest.mark.system, pytest.mark.kinds, pytest.mark.timeout(1500)]

KINDS: Final[dict[str, tuple[Make, Document]]] = {
    # how to make ten pods, and the patch that leaves six of them
    "array": (array, {"parallelism": 6}),
    "Deployment": (app("Deployment"), {"replicas": 6}),
    "LeaderWorkerSet": (leader_workers(5), {"replicas": 3}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_as_many_pods_run_as_there_is_room_for_and_as_its_user_wants(
    installation: Installation, kind: str
) -> None:
    make, fewer = KINDS[kind]
    with installation.workspace(64) as workspace:
        document = make("gang", workspace.namespace, PodSetManifest(10, gpus=8), None)
        assert isinstance(document, dict)
        workspace.submit(document)
        workspace.until_running("gang", 8, lambda _: True, "as many run as there is room for")
        workspace.client.patch(workspace.client.path_of(document), {"spec": fewer})
        workspace.job("next", PodSetManifest(2, gpus=8))
        workspace.until_state("next", "Running")
        assert len(workspace.running("gang")) == 6
