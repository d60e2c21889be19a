"""The number of pods changes while they run: of kinds of which each part is a gang, and of kinds with the subresource ``scale``."""

from __future__ import annotations

from typing import Final

import pytest

from queuectl.demo.scenario import Document, PodSetManifest
from tests.kinds.entries import ENTRIES
from tests.kinds.entry import Entry, Make
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


_SCALABLE = [one for one in ENTRIES if one.kind in ("PyTorchJob", "PaddleJob", "JAXJob")]


@pytest.mark.parametrize("entry", _SCALABLE, ids=lambda one: one.kind)
def test_a_job_that_its_user_scales_while_it_runs_is_planned_again_with_its_new_size(
    installation: Installation, entry: Entry
) -> None:
    """A Scale has no labels, so admission cannot know that it is of a job in a queue. New pods have the gate."""
    with installation.workspace(64) as workspace:
        gang = entry.submit(workspace, "gang", 4)
        gang.runs()
        scale = f"{workspace.client.path_of(gang.stored[0])}/scale"
        replicas = workspace.client.get(scale)["spec"]["replicas"]
        workspace.client.patch(scale, {"spec": {"replicas": replicas + 1}})
        workspace.until_running("gang", 5, lambda pod: pod.attempt == 2, "the new size runs")
        reasons = [message for _, message in workspace.events("gang")]
        assert any("its number of pods changed while it ran" in one for one in reasons)
