"""GPU utilization from a Prometheus. The number of queries per evaluation does not depend on the number of gangs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Final

from queuectl.domain.node_health import GpuClock, GpuFault, NodeHealthRules
from queuectl.domain.utilization import PodKey, PodUse, UtilizationSample
from queuectl.telemetry.signal.health import NVIDIA_HEALTH, HealthNames, HealthQueries
from queuectl.telemetry.signal.names import (
    HONORED,
    NVIDIA,
    RENAMED,
    UID,
    ExporterNames,
    PodLabelNames,
)
from queuectl.telemetry.signal.prometheus_api import PrometheusApi, sample_number
from queuectl.telemetry.signal.queries import Dialect, PodSignal, Query, Raw, Recorded
from queuectl.telemetry.signal.trust import NVIDIA_TRUST, Trust

_NEEDED: Final = (PodSignal.BUSY, PodSignal.MEAN, PodSignal.SAMPLES, PodSignal.GPUS)


Rows = dict[tuple[str, str, str], dict[PodSignal, float]]
"""By namespace, pod and uid ("" if unknown)."""


class PrometheusSource:
    """Queries a Prometheus, or a server with the same API.

    Without ``labels``, it selects the labels whose values name existing pods.
    """

    def __init__(
        self,
        url: str,
        *,
        names: ExporterNames = NVIDIA,
        trust: Trust = NVIDIA_TRUST,
        scrape_seconds: float = 30.0,
        labels: PodLabelNames | None = None,
        recorded: Recorded | None = None,
        rules: bool | None = None,
        trust_slices: bool = False,
        token_file: Path | None = None,
        ca_file: Path | None = None,
        timeout: float = 30.0,
        health: HealthNames = NVIDIA_HEALTH,
    ) -> None:
        """Connect lazily.

        Args:
            url: of its API, without ``/api/v1``.
            names: the metrics and labels.
            trust: the scrape jobs whose series count. With namespaces, labels are those that Prometheus renames: only
                then is ``namespace`` that of the exporter.
            scrape_seconds: between the samples of a GPU.
            labels: the labels that name the pods; None = detect them. An exporter with its own labels ignores this.
            recorded: the intervals of the recording rules.
            rules: query the recording rules; None = if they exist, and ``names`` are NVIDIA's.
            trust_slices: the exporter measures each pod of a time-sliced GPU separately (``--kubernetes-virtual-gpus``).
            token_file: a bearer token, read again for each evaluation.
            ca_file: certificates to trust; None = the system's.
            timeout: seconds for one query.
            health: the metrics that show faults of GPUs.
        """
        self._api = PrometheusApi(url, token_file=token_file, ca_file=ca_file, timeout=timeout)
        self.trusts = str(trust)
        self._raw = Raw(names, trust)
        self._recorded = recorded or Recorded(scrape_seconds, trust=trust)
        # The rules in deploy/ record NVIDIA's metrics. Other vendors need other rules, named in the settings.
        self._rules = False if rules is None and names != NVIDIA else rules
        self._scrape = scrape_seconds
        labels = names.own_labels or labels
        self._health = HealthQueries(trust, scrape_seconds, health)
        self._labels = labels or (RENAMED if trust.namespaces else HONORED)
        self._guess = labels is None and not trust.namespaces
        self._trust_slices = trust_slices

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    async def sample(self, window: float, at: float, pods: Collection[PodKey]) -> UtilizationSample:
        """The samples of the ``window`` seconds before ``at`` (unix seconds).

        Args:
            window: seconds.
            at: unix seconds.
            pods: pods that hold GPUs, by which labels are recognized.

        Raises:
            SourceUnavailable: it does not answer, or not what was asked.
        """
        dialect = await self._dialect(at)
        labels = self._labels
        rows = await self._rows(dialect.pods(labels, window), labels, at)
        coarse = await self._coarse(dialect, labels, window, at, rows, pods)
        if self._guess and pods and not _names_any((*rows, *coarse), pods):
            other = RENAMED if labels == HONORED else HONORED
            others = await self._rows(dialect.pods(other, window), other, at)
            coarse_others = await self._coarse(dialect, other, window, at, others, pods)
            if _names_any((*others, *coarse_others), pods):
                self._labels, rows, coarse = other, others, coarse_others
        gpus = [
            sample_number(sample) for sample in await self._api.ask(dialect.gpus(window).text, at)
        ]
        untrusted = await self._api.ask(self._raw.untrusted().text, at)
        return UtilizationSample(
            at=at,
            window=window,
            reach=window + dialect.smear,
            gpus=round(gpus[0]) if gpus and isfinite(gpus[0]) else 0,
            pods=tuple(self._uses(rows, coarse, window)),
            untrusted=tuple(sorted(one.metric.get("job", "") for one in untrusted)),
        )

    async def faults(self, rules: NodeHealthRules, at: float) -> Sequence[GpuFault]:
        """The faults of GPUs that count by the rules, as of ``at`` (unix seconds).

        Raises:
            SourceUnavailable: it does not answer, or not what was asked.
        """
        found = []
        for signal, text in self._health.of(rules).items():
            samples = await self._api.ask(text, at)
            made = (
                self._health.fault(signal, one.metric, sample_number(one), rules) for one in samples
            )
            found += [each for each in made if each is not None]
        return found

    async def clocks(self, window: float, at: float) -> Sequence[GpuClock]:
        """The clocks of GPUs of pods over the ``window`` seconds before ``at`` (unix seconds).

        Raises:
            SourceUnavailable: it does not answer, or not what was asked.
        """
        query = self._health.clocks(window)
        samples = await self._api.ask(query, at) if query is not None else []
        made = (self._health.clock(one.metric, sample_number(one)) for one in samples)
        return [each for each in made if each is not None]

    async def _dialect(self, at: float) -> Dialect:
        if self._rules is None:
            return (
                self._recorded
                if await self._api.ask(self._recorded.there().text, at)
                else self._raw
            )
        return self._recorded if self._rules else self._raw

    async def _coarse(
        self,
        dialect: Dialect,
        labels: PodLabelNames,
        window: float,
        at: float,
        rows: Rows,
        pods: Collection[PodKey],
    ) -> Rows:
        """The values of the coarse metric, for pods that lack the other or share a GPU; empty if no pod needs it."""
        seen = {
            key[:2]
            for key, row in rows.items()
            if PodSignal.BUSY in row and not (self._trust_slices and PodSignal.SHARED in row)
        }
        if all(pod in seen for pod in pods):
            return {}
        return await self._rows(dialect.coarse(labels, window), labels, at)

    async def _rows(
        self, queries: Mapping[PodSignal, Query], labels: PodLabelNames, at: float
    ) -> Rows:
        rows: Rows = {}
        answers = await asyncio.gather(
            *(self._api.ask(query.text, at) for query in queries.values())
        )
        for (value, query), samples in zip(queries.items(), answers, strict=True):
            for sample in samples:
                metric = sample.metric
                number = sample_number(sample) / query.full
                if isfinite(number) and number >= 0.0:  # a negative value is not a measurement
                    key = (
                        metric.get(labels.namespace, ""),
                        metric.get(labels.pod, ""),
                        metric.get(UID, ""),
                    )
                    rows.setdefault(key, {})[value] = number
        return rows

    def _uses(self, rows: Rows, coarse: Rows, window: float) -> Iterable[PodUse]:
        for key in rows.keys() | coarse.keys():
            fine, rough = rows.get(key, {}), coarse.get(key, {})
            shared = PodSignal.SHARED in fine
            better = rough.get(PodSignal.GPUS, 0) > fine.get(PodSignal.GPUS, 0)
            row = fine
            own = shared and self._trust_slices and bool(rough)
            if better or own:
                row = {**fine, **rough}
            if all(value in row for value in _NEEDED):
                use = self._use(key, row, window, shared=shared and not own, profiled=row is fine)
                yield replace(use, own=own)

    def _use(
        self,
        key: tuple[str, str, str],
        row: dict[PodSignal, float],
        window: float,
        *,
        shared: bool,
        profiled: bool,
    ) -> PodUse:
        namespace, pod, uid = key
        # The time of the first sample in a window is random: one missing sample is allowed.
        coverage = (row[PodSignal.SAMPLES] + 1) * self._scrape / window
        return PodUse(
            namespace=namespace,
            pod=pod,
            gpus=round(row[PodSignal.GPUS]),
            busy=_part(row[PodSignal.BUSY]),
            mean=_part(row[PodSignal.MEAN]),
            coverage=coverage,
            age=row.get(PodSignal.AGE, window),  # no current sample: its age is unknown
            uid=uid or None,
            tensor=_maybe(row.get(PodSignal.TENSOR)) if profiled else None,
            memory_busy=_maybe(row.get(PodSignal.MEMORY_BUSY)) if profiled else None,
            memory_held=_maybe(row.get(PodSignal.MEMORY_HELD)),
            shared=shared,
            profiled=profiled,
        )


def _names_any(keys: Iterable[tuple[str, str, str]], pods: Collection[PodKey]) -> bool:
    return any(key[:2] in pods for key in keys)


def _part(share: float) -> float:
    return min(max(share, 0.0), 1.0)


def _maybe(share: float | None) -> float | None:
    return None if share is None else _part(share)
