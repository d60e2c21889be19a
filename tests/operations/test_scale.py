"""One gang on a whole cluster, and a refusal by the full cluster; times are printed, and tests/bench judges them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from queuectl.demo.scenario import PodSetManifest
from queuectl.localcluster import NodeSpec
from queuectl.localcluster.client import get_plain
from tests.system.installation import RACK, Installation, installed, since

pytestmark = pytest.mark.operations


@pytest.fixture(scope="module")
def large_installation() -> Iterator[Installation]:
    """512 nodes of 8 GPUs: 4 blocks of 8 racks of 16."""
    with installed(NodeSpec(blocks=4, racks_per_block=8, hosts_per_rack=16), operators=()) as built:
        yield built


def decision(installation: Installation) -> str:
    text = get_plain(f"{installation.controller.metrics}/metrics").text
    total = re.findall(r'stage_duration_seconds_sum\{stage="plan"\} ([\d.e+-]+)', text)
    count = re.findall(r'stage_duration_seconds_count\{stage="plan"\} ([\d.e+-]+)', text)
    return f"{1000 * float(total[0]) / float(count[0]):.0f} ms mean of {float(count[0]):.0f} plans"


def test_a_gang_of_512_pods_starts_and_a_full_cluster_refuses_another(
    large_installation: Installation, capsys: pytest.CaptureFixture[str]
) -> None:
    with large_installation.workspace(4096 + 80) as workspace:
        began = time.perf_counter()
        workspace.job("gang", PodSetManifest(512, gpus=8))
        workspace.until(
            lambda: len([p for p in workspace.pods("gang") if p.node]) == 512,
            "all placed",
            seconds=240,
        )
        placed = since(began)
        workspace.until_state("gang", "Running")
        with capsys.disabled():
            print(
                f"\n512 pods: decided in {decision(large_installation)}; all placed {placed}, running {since(began)}"
            )
        began = time.perf_counter()
        workspace.job("late", PodSetManifest(10, gpus=8, required=RACK))
        workspace.until(
            lambda: (
                workspace.workload("late").get("reason", {}).get("code")
                == "TopologyPlacementFailed"
            ),
            "the no has its reason",
        )
        with capsys.disabled():
            print(
                f"no after {since(began)}: {workspace.rest.explain(workspace.namespace, 'late')['sentence']}"
            )
        explained = workspace.rest.explain(workspace.namespace, "late")
        assert explained["details"]["proof"] == "optimal"
