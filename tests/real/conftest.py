"""Real nodes for the tests of this folder. They run by `make e2e-real` only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real import sandbox
from tests.real.cluster import RealInstallation, real_installation


@pytest.fixture(scope="session")
def installation() -> Iterator[RealInstallation]:
    """Four nodes of two devices in two racks, and queuectl."""
    if sandbox.home() is None:
        pytest.skip("real nodes exist in the sandbox of `make e2e-real` only")
    with real_installation() as installation:
        yield installation
