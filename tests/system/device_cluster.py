"""The control plane of the tests with devices: the nodes have no device plugin, a driver publishes eight GPUs of each."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

import pytest

from queuectl.localcluster import NodeSpec
from tests.support.shared_resource import SharedResource
from tests.system.installation import Installation, installed

NODES: Final = NodeSpec(racks_per_block=2, hosts_per_rack=8, gpus=0, devices=8)


def _installed() -> AbstractContextManager[Installation]:
    return installed(NODES, training_operator=False)


@pytest.fixture(scope="module")
def device_installation(shared_resource: SharedResource) -> Installation:
    """16 nodes of 8 devices: 2 racks of 8."""
    return shared_resource.get(_installed)
