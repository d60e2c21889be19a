"""A declared kind with a real operator: XGBoostJobs, whose built-in description is given to queuectl as ``jobKinds`` instead.

The chart and the controller of this installation lack the built-in kind, so they have the declaration only.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from queuectl.cluster.apply import OF_PODS, apply, wait_until_in_force
from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.localcluster import LocalCluster
from queuectl.localcluster.operators import TRAINING_OPERATOR
from tests.kinds import test_matrix as matrix
from tests.kinds.entries import ENTRIES
from tests.kinds.entry import FEATURES, Entry
from tests.kinds.test_life_cycle import lives
from tests.support import chart
from tests.support.controlplane import NODES
from tests.support.outside import chart_without, declaration, declared_instead
from tests.support.shared_resource import SharedResource
from tests.system.installation import Installation, installed

pytestmark = [pytest.mark.system, pytest.mark.kinds, pytest.mark.timeout(1500)]

KIND: Final = "XGBoostJob"
DECLARED: Final = {"jobKinds": [declaration(KIND)]}
[ENTRY] = (one for one in ENTRIES if one.kind == KIND)
WITHOUT_BUILT_IN: Final = f"""from types import MappingProxyType
from queuectl.objects import kinds
kinds.KINDS = MappingProxyType({{name: kind for name, kind in kinds.KINDS.items() if name != "{KIND}"}})
"""
"""Python runs it as sitecustomize.py before the program."""
ROW: Final[dict[str, Callable[[Installation, Entry], None]]] = {
    "admit": matrix.test_it_waits_suspended_or_gated_and_starts_with_all_its_pods,
    "place": matrix.test_all_its_pods_are_in_the_rack_that_it_requires,
    "preempt": matrix.test_it_is_evicted_for_a_gang_of_higher_priority,
    "requeue": matrix.test_it_runs_again_before_later_gangs_of_its_priority,
    "repair": matrix.test_a_lost_pod_takes_its_slot_again_and_a_lost_node_is_replaced,
    "ranks": matrix.test_its_ranks_are_in_the_order_of_the_racks,
    "finish": matrix.test_its_end_frees_its_gpus,
}


def _documents() -> list[Any]:
    """The admission and the rights of a chart without the built-in kind."""
    with tempfile.TemporaryDirectory() as folder:
        copy = chart_without(KIND, Path(folder) / "chart")
        found = chart.documents({**chart.BASE_VALUES, **DECLARED}, chart=copy)
    chosen = [one for one in found if one["kind"] not in OF_PODS]
    return sorted(chosen, key=lambda one: str(one["kind"]) != "Namespace")


@contextmanager
def _admission(cluster: LocalCluster) -> Iterator[None]:
    async def install() -> None:
        api = await Api.connect(Connection(kubeconfig=cluster.kubeconfig))
        try:
            await apply(api, _documents())
            await wait_until_in_force(api)
        finally:
            await api.close()

    asyncio.run(install())
    yield


@contextmanager
def _installed() -> Iterator[Installation]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "sitecustomize.py").write_text(WITHOUT_BUILT_IN)
        (folder / "job-kinds.yaml").write_text(yaml.safe_dump(DECLARED))
        settings = {
            "PYTHONPATH": str(folder),
            "QUEUECTL_KINDS_FILE": str(folder / "job-kinds.yaml"),
        }
        operators, kinds = (TRAINING_OPERATOR,), declared_instead(KIND)
        with installed(NODES, settings, _admission, kinds, operators=operators) as made:
            yield made


@pytest.fixture(scope="module")
def installation(shared_resource: SharedResource) -> Installation:
    """16 nodes of 8 GPUs: 2 blocks of 2 racks of 4."""
    return shared_resource.get(_installed)


def test_a_gang_is_placed_evicted_started_again_repaired_and_ends(
    installation: Installation,
) -> None:
    lives(installation, ENTRY)


def test_the_row_has_all_features_of_the_built_in_kind() -> None:
    assert {*ROW} == {*FEATURES} - {*ENTRY.without}


@pytest.mark.parametrize("feature", ROW)
def test_it_has_the_feature_of_the_built_in_kind(installation: Installation, feature: str) -> None:
    ROW[feature](installation, ENTRY)
