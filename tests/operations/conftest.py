"""The control plane with the custom resources, of the modules that need no other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.operations.custom import CustomCluster, custom_cluster


@pytest.fixture(scope="module")
def api() -> Iterator[CustomCluster]:
    with custom_cluster() as cluster:
        yield cluster
