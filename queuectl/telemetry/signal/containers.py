"""CPU and memory of pods: the metrics that each kubelet has of its containers (cAdvisor), from a Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from queuectl.domain.job_usage import ContainerUse
from queuectl.domain.utilization import PodKey
from queuectl.telemetry.signal.prometheus_api import PrometheusApi, sample_number
from queuectl.telemetry.signal.queries import duration
from queuectl.telemetry.signal.trust import Trust

KUBELET_JOBS: Final = (
    "kubelet",
    "cadvisor",
    "kubernetes-cadvisor",
    "kubernetes-nodes-cadvisor",
)
"""Scrape jobs of the usual installations: the Prometheus operator's, and those of Prometheus' chart and examples."""

_LARGEST: Final = 1e15  # cores or bytes; neither infinite nor NaN


class ContainerMetrics:
    """The use of all pods, in two queries for any number of pods."""

    def __init__(self, api: PrometheusApi, trust: Trust) -> None:
        """``trust``: the scrape jobs whose series count. A tenant can export series with any other labels."""
        self._api = api
        # The series without a container are sums that the kubelet makes of the others; POD is the container of the sandbox.
        self._matchers = f'{trust.selector},pod!="",container!="",container!="POD"'

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    async def containers(self, window: float, at: float) -> Mapping[PodKey, ContainerUse]:
        """The pods that have both values: cores over the ``window`` seconds before ``at``, and memory at that time.

        Raises:
            SourceUnavailable: it does not answer, or not what was asked.
        """
        rate = f"rate(container_cpu_usage_seconds_total{{{self._matchers}}}[{duration(window)}])"
        cores = await self._by_pod(rate, at)
        memory = await self._by_pod(f"container_memory_working_set_bytes{{{self._matchers}}}", at)
        return {pod: ContainerUse(cores[pod], memory[pod]) for pod in cores.keys() & memory.keys()}

    async def _by_pod(self, series: str, at: float) -> dict[PodKey, float]:
        # Two scrape jobs can have the same container.
        each = f"max by (namespace, pod, container) ({series})"
        answer = await self._api.ask(f"sum by (namespace, pod) ({each})", at)
        sums = {
            (s.metric.get("namespace", ""), s.metric.get("pod", "")): sample_number(s)
            for s in answer
        }
        return {pod: total for pod, total in sums.items() if 0.0 <= total < _LARGEST}
