"""One object crashes each process that decodes it. After three crashes queuectl works without it, also after the next restart."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from queuectl.control.careful import UNKNOWN_ENDS
from queuectl.demo.controller import ControllerFailed, ControllerProcess
from queuectl.demo.scenario import PodSetManifest
from queuectl.localcluster import NodeSpec
from queuectl.localcluster.client import get_plain, wait_until
from tests.support.shared_resource import SharedResource
from tests.system.actions import restart_controller
from tests.system.installation import Installation, installed

pytestmark = [pytest.mark.system, pytest.mark.faults, pytest.mark.sets_aside]

POISONED = Path(__file__).parent / "poisoned"


def poisoned() -> AbstractContextManager[Installation]:
    """2 nodes, and a controller that Jobs with a name of poison crash."""
    nodes = NodeSpec(blocks=1, racks_per_block=1, hosts_per_rack=2)
    return installed(nodes, {"PYTHONPATH": str(POISONED)}, operators=())


def suspects(controller: ControllerProcess) -> float:
    """The number that the metrics of the process show."""
    lines = get_plain(f"{controller.metrics}/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("queuectl_suspects "))


def crashes(controller: ControllerProcess) -> int:
    """Restart the controller until it is ready. Returns how often it crashed."""
    for count in range(10):
        try:
            controller.wait_ready()
        except ControllerFailed:
            if controller.running:
                raise
            controller.restart()
        else:
            return count
    raise AssertionError("it crashes again and again")


def test_queuectl_works_again_after_three_crashes(shared_resource: SharedResource) -> None:
    installation = shared_resource.get(poisoned)
    controller = installation.controller
    with installation.workspace(16) as workspace:
        workspace.job("poison", PodSetManifest(1, gpus=8))
        wait_until(lambda: not controller.running, "the controller crashes", 60)
        assert crashes(controller) == UNKNOWN_ENDS
        assert suspects(controller) == 1
        workspace.job("fine", PodSetManifest(1, gpus=8))
        workspace.until_state("fine", "Running")
        assert not workspace.workload("poison")
        restart_controller(workspace)
        controller.wait_ready()
        assert suspects(controller) == 1
        workspace.job("later", PodSetManifest(1, gpus=8))
        workspace.until_state("later", "Running")
