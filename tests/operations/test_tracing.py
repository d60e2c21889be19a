"""Traces of gangs on a real control plane: the leader is killed in between, and the collector is down at first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from queuectl.demo.scenario import PodSetManifest
from tests.support.controlplane import NODES
from tests.system.installation import QUICK, Installation, installed
from tests.unit.test_tracing import Collector, collecting

pytestmark = pytest.mark.operations
GANGS = 6


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture(scope="module")
def installation(collector: Collector) -> Iterator[Installation]:
    with installed(NODES, settings={**QUICK, "QUEUECTL_OTLP_ENDPOINT": collector.url}) as running:
        yield running


def test_each_stage_of_each_gang_is_exported_although_the_leader_is_killed(
    installation: Installation, collector: Collector
) -> None:
    collector.status = 503
    names = [f"gang-{number}" for number in range(GANGS)]
    with installation.workspace(32) as workspace:
        for name in names[: GANGS // 2]:
            workspace.job(name, PodSetManifest(2, gpus=8), seconds=1.0)
        for name in names[: GANGS // 2]:
            workspace.until_state(name, "Finished")
        installation.controller.kill()
        installation.controller.restart()
        installation.controller.wait_ready()
        collector.status = 200
        for name in names[GANGS // 2 :]:
            workspace.job(name, PodSetManifest(2, gpus=8), seconds=1.0)
        for name in names[GANGS // 2 :]:
            workspace.until_state(name, "Finished")

        def stages() -> Counter[str]:
            spans = {
                (span.trace_id, span.span_id): span.name
                for span in collector.spans()
                if not span.name.startswith(("GET", "POST", "PUT"))
            }
            return Counter(spans.values())

        expected = Counter(dict.fromkeys(("Pending", "Starting", "Running", "Attempt"), GANGS))
        workspace.until(lambda: stages() == expected, f"{expected} and not {stages()}")
        assert any(span.name.startswith("GET /api/v1/") for span in collector.spans())
