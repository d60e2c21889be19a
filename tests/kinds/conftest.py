"""The control plane of the tests of kinds: 16 nodes, and the operator of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from queuectl.localcluster import NodeSpec
from tests.kinds.entries import OPERATORS
from tests.support.shared_resource import SharedResource, shared_resource
from tests.support.simulated_ray import simulated_ray
from tests.support.spark_drivers import simulated_drivers
from tests.system.installation import Installation, installed

__all__ = ["shared_resource"]

NODES = NodeSpec(blocks=2, racks_per_block=2, hosts_per_rack=4)


@contextmanager
def _installed() -> Iterator[Installation]:
    """With a simulated Ray, from which KubeRay reads the end of RayJobs, and the containers of Spark's drivers."""
    with simulated_ray() as ray, installed(NODES, operators=OPERATORS, proxy=ray.address) as one:
        ray.client = one.cluster.client
        with simulated_drivers(one.cluster):
            yield one


@pytest.fixture(scope="module")
def installation(shared_resource: SharedResource) -> Installation:
    """16 nodes of 8 GPUs: 2 blocks of 2 racks of 4."""
    return shared_resource.get(_installed)
