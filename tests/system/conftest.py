"""The houses that most system tests share."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest

from queuectl.localcluster import NodeSpec
from tests.support.shared import Standing, standing
from tests.system.house import House, house
from tests.system.measured import Measured, measured_house

__all__ = ["standing"]

NODES = NodeSpec(blocks=2, racks_per_block=2, hosts_per_rack=4)


def _home() -> AbstractContextManager[House]:
    return house(NODES)


@pytest.fixture(scope="module")
def home(standing: Standing) -> House:
    """16 nodes of 8 GPUs: 2 blocks of 2 racks of 4."""
    return standing.on(_home)


@pytest.fixture(scope="module")
def measured(standing: Standing) -> Measured:
    """4 nodes of 8 GPUs whose use a Prometheus knows."""
    return standing.on(measured_house)
