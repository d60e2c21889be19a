"""The house that most system tests share, and the order in which the workers of `make test-system` take up the files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from queuectl.localcluster import NodeSpec
from tests.system.house import House, house
from tests.system.measured import Measured, measured_house

NODES = NodeSpec(blocks=2, racks_per_block=2, hosts_per_rack=4)
GROUPS: Final = (
    ("system/test_kills", "system/test_gangs", "system/test_default_queue", "system/test_serve_api"),
    ("system/test_lifecycle", "system/test_queues", "system/test_limits", "system/test_refusals"),
    ("system/test_idle_reclaim", "system/test_utilization", "system/test_dashboards"),
    ("docs/test_admin", "docs/test_users", "docs/test_guides", "docs/test_operate"),
    ("system/test_demo",),
    ("cluster/test_kubernetes", "cluster/test_tokenrequest", "cluster/test_access", "system/test_rights"),
    ("cluster/test_localcluster_run",),
    ("system/test_dashboard",),
    ("utilization/test_sources",),
    ("system/test_scale",),
    ("cluster/test_localcluster_lifecycle",),
    ("system/test_takeover",),
)  # fmt: skip
"""Files that stand on the same control plane go to the same worker, which starts it once. The longest groups come first, so
that at the end no worker is left alone with much to do; a file that is not named is a group of its own."""
_TURNS: Final = {
    file: (f"group {number}", number, turn)
    for number, group in enumerate(GROUPS)
    for turn, file in enumerate(group)
}


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Which worker takes up what, and when."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_turn(item)[0]))
    items.sort(key=lambda item: _turn(item)[1:])


def _turn(item: pytest.Item) -> tuple[str, int, int]:
    """Of a test's file: its group, the group's place, and its own within the group."""
    file = f"{item.path.parent.name}/{item.path.stem}"
    return _TURNS.get(file, (file, len(GROUPS), 0))


@pytest.fixture(scope="session")
def home() -> Iterator[House]:
    """16 nodes of 8 GPUs: 2 blocks of 2 racks of 4."""
    with house(NODES) as built:
        yield built


@pytest.fixture(scope="session")
def measured() -> Iterator[Measured]:
    """4 nodes of 8 GPUs whose use a Prometheus knows."""
    with measured_house() as built:
        yield built
