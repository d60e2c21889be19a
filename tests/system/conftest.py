"""The control planes that most system tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from queuectl.demo.api_connection import ApiConnection
from queuectl.localcluster import LocalCluster
from tests.support.controlplane import until_deleted, with_policies
from tests.support.shared_resource import SharedResource, shared_resource
from tests.system.installation import Installation, controller_on
from tests.system.measured import MeasuredInstallation, measured_installation

__all__ = ["shared_resource"]


@contextmanager
def with_controller(cluster: LocalCluster) -> Iterator[Installation]:
    """queuectl leading on a control plane of :func:`with_policies`, which other tests can have used before."""
    until_deleted(cluster.client)
    with controller_on(cluster) as controller, ApiConnection(controller.api) as rest:
        yield Installation(cluster, controller, rest)


def default_installation(shared_resource: SharedResource) -> Installation:
    """The installation of most tests."""
    return shared_resource.get(with_policies, with_controller)


@pytest.fixture(scope="module")
def installation(shared_resource: SharedResource) -> Installation:
    """16 nodes of 8 GPUs: 2 blocks of 2 racks of 4."""
    return default_installation(shared_resource)


@pytest.fixture(scope="module")
def measured(shared_resource: SharedResource) -> MeasuredInstallation:
    """4 nodes of 8 GPUs whose use a Prometheus knows."""
    return shared_resource.get(measured_installation)
