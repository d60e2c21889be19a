"""CPU and memory of pods: from the answers of a Prometheus to the sums of gangs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest
import structlog.testing

from queuectl.control.leader.containers import ContainerWatch, gang_sums
from queuectl.control.settings import Settings, UtilizationSettings
from queuectl.control.sources import container_source, usage_sources
from queuectl.domain.errors import BadInput, Fenced, SourceUnavailable
from queuectl.domain.job_usage import ContainerSums, ContainerUse, UsageSources
from queuectl.domain.jobs import PodPhase
from queuectl.domain.quantity import CPU, MEMORY, Resources
from queuectl.domain.utilization import PodKey
from queuectl.telemetry.signal.containers import ContainerMetrics
from queuectl.telemetry.signal.prometheus_api import PrometheusApi
from queuectl.telemetry.signal.trust import Trust
from tests.unit.test_signal_answers import Answering
from tests.unit.test_state import on
from tests.unit.test_use_watch import NOW, world

SIZE = Resources({CPU: 4000, MEMORY: 16 << 30})
GIB = 1 << 30


def test_a_gang_counts_the_pods_whose_whole_window_is_measured() -> None:
    pods = [
        replace(on("p1", "n1", started_at=15.0), requests=SIZE),
        replace(on("p2", "n2", started_at=15.0), requests=SIZE),
        replace(on("young", "n2", started_at=NOW - 100.0), requests=SIZE),
        replace(on("created", "n2"), requests=SIZE),
    ]
    names = [(pod.namespace, pod.name) for pod in pods]
    uses = {
        names[0]: ContainerUse(1.0, 8.0 * GIB),
        names[2]: ContainerUse(9.0, 1.0),
        names[3]: ContainerUse(9.0, 1.0),
    }
    assert gang_sums(pods, uses, 120.0, NOW) == ContainerSums(
        NOW, 120.0, 120.0, 480.0, 120.0 * 8 * GIB, 120.0 * 16 * GIB, 8.0 * GIB
    )
    uses[names[1]] = ContainerUse(2.0, 4.0 * GIB)
    both = gang_sums(pods, uses, 120.0, NOW)
    assert both is not None
    assert (both.cpu_seconds, both.cpu_requested, both.pod_seconds) == (360.0, 960.0, 240.0)
    assert both.memory_peak == 8.0 * GIB
    assert gang_sums(pods, {}, 120.0, NOW) is None
    assert gang_sums([], uses, 120.0, NOW) is None


class Source:
    """Answers with fixed values, or fails."""

    def __init__(self, uses: Mapping[PodKey, ContainerUse] | Exception) -> None:
        self.uses = uses
        self.windows: list[float] = []
        self.twice = asyncio.Event()

    async def containers(self, window: float, at: float) -> Mapping[PodKey, ContainerUse]:
        self.windows.append(window)
        if len(self.windows) > 1:
            self.twice.set()
        if isinstance(self.uses, Exception):
            raise self.uses
        return self.uses

    async def close(self) -> None:
        pass


def watch(source: Source) -> ContainerWatch:
    made = world()
    made.see(replace(on("done", "n3"), phase=PodPhase.SUCCEEDED))
    return ContainerWatch(
        source,
        made.mirror,
        lambda: NOW,
        evaluation_seconds=0.0,
        scrape_seconds=30.0,
        timeout=5.0,
    )


class Usage:
    """Keeps what is added; the second write is fenced."""

    def __init__(self) -> None:
        self.added: list[Mapping[str, ContainerSums]] = []

    async def measured(
        self, sums: Mapping[str, ContainerSums], window: float, *, epoch: int
    ) -> None:
        if self.added:
            raise Fenced("over")
        self.added.append(sums)


async def test_a_leader_adds_an_evaluation_and_ends_when_it_is_deposed() -> None:
    made, usage = world(), Usage()
    source = Source({("a", name): ContainerUse(1.0, 1.0) for name in ("p1", "p2", "done")})
    with pytest.raises(Fenced):
        await watch(source).run(usage, lambda: made.ledger, 1)  # type: ignore[arg-type]  # what it uses
    (sums,) = usage.added
    assert [each.pod_seconds for each in sums.values()] == [240.0]
    assert source.windows == [120.0, 120.0]


async def test_without_an_answer_nothing_is_added_and_it_asks_again() -> None:
    made, usage = world(), Usage()
    source = Source(SourceUnavailable("Prometheus: away"))
    with structlog.testing.capture_logs() as logs:
        task = asyncio.create_task(watch(source).run(usage, lambda: made.ledger, 1))  # type: ignore[arg-type]  # what it uses
        await source.twice.wait()
        task.cancel()
    assert usage.added == []
    assert logs[0]["event"] == "containers_not_measured"
    assert logs[0]["reason"] == "Prometheus: away"


async def test_pods_need_both_values_and_impossible_numbers_count_as_missing() -> None:
    answer = (
        '{"status":"success","data":{"result":['
        + ",".join(
            f'{{"metric":{{"namespace":"team","pod":"{pod}"}},"value":[1,"{number}"]}}'
            for pod, number in (("p", "1.5"), ("nan", "NaN"), ("inf", "+Inf"), ("less", "-1"))
        )
        + "]}}"
    )
    with Answering().serving() as server:
        metrics = ContainerMetrics(PrometheusApi(server.url), Trust(("kubelet",)))
        server.body = answer
        assert await metrics.containers(120.0, NOW) == {("team", "p"): ContainerUse(1.5, 1.5)}
        server.body = '{"status":"error","error":"parse error"}'
        with pytest.raises(SourceUnavailable, match="parse error"):
            await metrics.containers(120.0, NOW)
        await metrics.close()


async def test_the_settings_decide_which_sources_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUECTL_DATABASE_URL", "postgresql://x")
    none = Settings()
    assert container_source(none) is None
    assert usage_sources(none) == UsageSources()
    exporters = Settings(utilization=UtilizationSettings(exporters="http://x:9400/metrics"))
    assert usage_sources(exporters) == UsageSources(gpus=True)
    both = Settings(prometheus_url="http://x:9090")
    assert usage_sources(both) == UsageSources(gpus=True, containers=True)
    source = container_source(both)
    assert source is not None
    await source.close()
    wrong = Settings(
        prometheus_url="http://x:9090", utilization=UtilizationSettings(container_jobs='a"b')
    )
    with pytest.raises(BadInput, match="CONTAINER_JOBS"):
        container_source(wrong)
