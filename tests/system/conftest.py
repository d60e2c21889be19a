"""The control planes that most system tests share."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest

from queuectl.localcluster import NodeSpec
from tests.support.shared_resource import SharedResource, shared_resource
from tests.system.installation import Installation, installed
from tests.system.measured import MeasuredInstallation, measured_installation

__all__ = ["shared_resource"]

NODES = NodeSpec(blocks=2, racks_per_block=2, hosts_per_rack=4)


def default_installation() -> AbstractContextManager[Installation]:
    """The control plane of most tests. Tests that pass this function to a SharedResource share it."""
    return installed(NODES)


@pytest.fixture(scope="module")
def installation(shared_resource: SharedResource) -> Installation:
    """16 nodes of 8 GPUs: 2 blocks of 2 racks of 4."""
    return shared_resource.get(default_installation)


@pytest.fixture(scope="module")
def measured(shared_resource: SharedResource) -> MeasuredInstallation:
    """4 nodes of 8 GPUs whose use a Prometheus knows."""
    return shared_resource.get(measured_installation)
