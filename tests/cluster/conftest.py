"""Fixtures of the cluster tests: a real control plane and its clients."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from tests.cluster.kubernetes_world import KubernetesWorld, world_on
from tests.support.controlplane import ControlPlane, control_plane
from tests.support.shared_resource import shared_resource

__all__ = ["control_plane", "shared_resource"]


@pytest.fixture
async def world(control_plane: ControlPlane) -> AsyncIterator[KubernetesWorld]:
    async with world_on(control_plane) as one:
        yield one


@pytest.fixture
async def own(control_plane: ControlPlane) -> AsyncIterator[Api]:
    """A client with the identity of queuectl."""
    api = await Api.connect(Connection(kubeconfig=control_plane.kubeconfig))
    yield api
    await api.close()


@pytest.fixture
async def admin(control_plane: ControlPlane) -> AsyncIterator[Api]:
    api = await Api.connect(Connection(kubeconfig=control_plane.cluster.kubeconfig))
    yield api
    await api.close()
