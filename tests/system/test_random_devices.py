"""The short form of `make test-devices`: kube-scheduler binds each pod of random gangs that queuectl pins."""

from __future__ import annotations

import pytest

from tests.allocator.suite import run
from tests.system.device_cluster import device_installation, device_workspace
from tests.system.installation import Installation

pytestmark = [pytest.mark.system, pytest.mark.gpus]
__all__ = ["device_installation"]


def test_kube_scheduler_binds_each_pod_of_random_gangs(device_installation: Installation) -> None:
    with device_workspace(device_installation) as workspace:
        result = run(workspace, seed=1, gangs=20)
    assert result.ok, "\n".join(result.lines())
