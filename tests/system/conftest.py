"""One house for all system tests that need no other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queuectl.localcluster import NodeSpec
from tests.system.house import House, house

NODES = NodeSpec(blocks=2, racks_per_block=2, hosts_per_rack=4)


@pytest.fixture(scope="session")
def home() -> Iterator[House]:
    """16 nodes of 8 GPUs: 2 blocks of 2 racks of 4."""
    with house(NODES) as built:
        yield built
