"""The control planes of ``make test-versions``: one for each supported minor version of Kubernetes, one at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queuectl.localcluster.versions import SUPPORTED
from tests.support.controlplane import NODES
from tests.system.installation import Installation, installed
from tests.versions.webhook import admission


@pytest.fixture(scope="session", params=SUPPORTED)
def installation(request: pytest.FixtureRequest) -> Iterator[Installation]:
    """16 nodes of 8 GPUs: 2 blocks of 2 racks of 4."""
    with installed(NODES, admission=admission, kubernetes=request.param) as one:
        yield one
