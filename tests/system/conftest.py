"""The house that most system tests share, and the order in which the workers of `make test-system` take up the files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from queuectl.localcluster import NodeSpec
from tests.system.house import House, house

NODES = NodeSpec(blocks=2, racks_per_block=2, hosts_per_rack=4)
LONGEST: Final = (
    *(
        "test_kills",
        "test_lifecycle",
        "test_demo",
        "test_idle_reclaim",
        "test_queues",
        "test_gangs",
    ),
    *("test_admin", "test_users", "test_guides", "test_operate", "test_utilization"),
    *("test_kubernetes", "test_dashboard", "test_localcluster_run", "test_takeover"),
    *("test_dashboards", "test_scale", "test_localcluster_lifecycle"),
)
"""The files that take longest, first: at the end no worker is left alone with much to do."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order in which workers take up files."""
    items.sort(key=place)


def place(item: pytest.Item) -> int:
    name = item.path.stem if item.get_closest_marker("system") else ""
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


@pytest.fixture(scope="session")
def home() -> Iterator[House]:
    """16 nodes of 8 GPUs: 2 blocks of 2 racks of 4."""
    with house(NODES) as built:
        yield built
