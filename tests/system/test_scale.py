"""One gang on a whole cluster, and a refusal by the full cluster; times are printed, and tests/bench judges them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from queuectl.demo.manifests import Pods
from queuectl.localcluster import NodeSpec
from queuectl.localcluster.client import get_plain
from tests.system.house import RACK, House, house, since

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def hall() -> Iterator[House]:
    """512 nodes of 8 GPUs: 4 blocks of 8 racks of 16."""
    with house(
        NodeSpec(blocks=4, racks_per_block=8, hosts_per_rack=16), training_operator=False
    ) as built:
        yield built


def decision(home: House) -> str:
    text = get_plain(f"{home.controller.metrics}/metrics").text
    total = re.findall(r'stage_duration_seconds_sum\{stage="plan"\} ([\d.e+-]+)', text)
    count = re.findall(r'stage_duration_seconds_count\{stage="plan"\} ([\d.e+-]+)', text)
    return f"{1000 * float(total[0]) / float(count[0]):.0f} ms mean of {float(count[0]):.0f} plans"


def test_a_gang_of_512_pods_starts_and_a_full_cluster_refuses_another(
    hall: House, capsys: pytest.CaptureFixture[str]
) -> None:
    with hall.room(4096 + 80) as room:
        began = time.perf_counter()
        room.job("gang", Pods(512, gpus=8))
        room.until(
            lambda: len([p for p in room.pods("gang") if p.node]) == 512, "all placed", seconds=240
        )
        placed = since(began)
        room.until_state("gang", "Running")
        with capsys.disabled():
            print(
                f"\n512 pods: decided in {decision(hall)}; all placed {placed}, running {since(began)}"
            )
        began = time.perf_counter()
        room.job("late", Pods(10, gpus=8, required=RACK))
        room.until(
            lambda: (
                room.workload("late").get("reason", {}).get("code") == "TopologyPlacementFailed"
            ),
            "the no has its reason",
        )
        with capsys.disabled():
            print(
                f"no after {since(began)}: {room.rest.explain(room.namespace, 'late')['sentence']}"
            )
        explained = room.rest.explain(room.namespace, "late")
        assert explained["details"]["proof"] == "optimal"
