"""One cluster for the tests of all pages of the documentation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.demo_cluster import DemoCluster, admin_shell, demo_cluster
from tests.system.transcript import Shell


@pytest.fixture(scope="package", name="demo_cluster")
def built_demo_cluster() -> Iterator[DemoCluster]:
    with demo_cluster() as built:
        yield built


@pytest.fixture
def shell(demo_cluster: DemoCluster) -> Iterator[Shell]:
    """A shell on the cluster, without workloads and configuration."""
    demo_cluster.clear()
    with admin_shell(demo_cluster.installation) as started:
        yield started
