"""A plugin of pytest for tests on a control plane: the worker and the order of each test file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, Final

import pytest

from tests.support.shared_resource import SHARED_RESOURCE
from tests.support.units import Units

GROUPS: Final = (
    ("docs/test_admin", "docs/test_mig", "docs/test_users", "docs/test_guides", "docs/test_practices", "docs/test_operate"),
    ("system/test_kills", "system/test_chaos", "system/test_careful", "system/test_set_aside"),
    ("kinds/test_matrix", "kinds/test_changes", "kinds/test_scale", "kinds/test_hold", "kinds/test_examples", "kinds/test_jobsets",
     "kinds/test_mpijobs", "kinds/test_appwrappers", "kinds/test_rayclusters", "kinds/test_rayservices", "kinds/test_rayjobs",
     "kinds/test_leaderworkersets", "kinds/test_trainjobs", "kinds/test_sparkapplications"),
    ("system/test_idle_reclaim", "system/test_utilization", "system/test_dashboards",
     "cluster/test_kubectl_plugin", "utilization/test_efficiency_panels", "cluster/test_localcluster_prometheus",
     "system/test_alerts", "utilization/test_recording_rules"),
    ("cluster/test_kubernetes", "system/test_lifecycle", "system/test_expected_start", "system/test_users_and_pods",
     "system/test_interruptions", "system/test_default_queue", "system/test_limits", "system/test_backfill",
     "cluster/test_own_installation", "cluster/test_read_only"),
    ("system/test_queues", "system/test_why", "system/test_gangs", "system/test_pods", "system/test_arrays", "system/test_elastic",
     "kinds/test_life_cycle"),
    ("cluster/test_localcluster_run", "cluster/test_doctor", "cluster/test_takeover", "cluster/test_tokenrequest",
     "cluster/test_access", "cluster/test_policies", "cluster/test_pod_policies", "cluster/test_preemption",
     "cluster/test_submitters", "system/test_rights", "system/test_serve_api", "system/test_refusals", "system/test_forged",
     "cluster/test_kinds_outside_queues", "system/test_chart"),
    ("system/test_demo",),
    ("docs/test_tutorials",),
    ("system/test_devices", "system/test_device_page", "system/test_random_devices", "system/test_claim_facts"),
)  # fmt: skip
"""Files of a group run in one worker in this order, and those that need the same control plane share it: tests without a controller
are before those with one. `make test-system` has four workers and four long groups. A file that is not named here is its own group."""
_TURNS: Final = {
    file: (f"group {number}", number, turn)
    for number, group in enumerate(GROUPS)
    for turn, file in enumerate(group)
}


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Units:
    return Units(config, log, lambda nodeid: _turn(nodeid)[0])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _turn(item.nodeid)[1:])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Stop the control plane of a group after its last test."""
    yield
    if nextitem is None or _turn(nextitem.nodeid)[0] != _turn(item.nodeid)[0]:
        SHARED_RESOURCE.end()


def group_of(file: str) -> str:
    """The group of a file of tests, by its path."""
    return _turn(file)[0]


def _turn(nodeid: str) -> tuple[str, int, int]:
    """Of a test's file: its group, the group's place, and its own within the group."""
    file = "/".join(PurePath(nodeid.partition("::")[0]).with_suffix("").parts[-2:])
    return _TURNS.get(file, (file, len(GROUPS), 0))
