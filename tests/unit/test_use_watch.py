"""From a source to the planner: gangs that hold GPUs, their samples, and their use in a snapshot."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
from prometheus_client import CollectorRegistry

from queuectl.control.leader.periodic import UseWatch
from queuectl.control.settings import MetricNames, Settings, UtilizationSettings
from queuectl.control.sources import metric_names, trust, use_source
from queuectl.domain.accounting import Accounting
from queuectl.domain.containment import Boundary
from queuectl.domain.errors import BadInput, SourceUnavailable
from queuectl.domain.events import PodsLost, PodsReady
from queuectl.domain.gpus import GpuWeights
from queuectl.domain.jobs import PodPhase
from queuectl.domain.ledger import Entry, EntryChange, State
from queuectl.domain.quantity import Resources
from queuectl.domain.queues import ClusterQueue, IdleReclaim, QueueConfig
from queuectl.domain.rules import Rules
from queuectl.domain.snapshot import SolverLimits
from queuectl.domain.utilization import GangUse, PodKey, PodUse, UseState, UtilizationSample
from queuectl.lifecycle.machine import handle
from queuectl.state import gpu_holders
from queuectl.state.freeze import SnapshotBuilder
from queuectl.state.gpu_holders import accelerators, held_gangs
from queuectl.telemetry.fleet import UseMetrics
from queuectl.telemetry.signal.exporters import ExporterSource
from queuectl.telemetry.signal.names import AMD, INTEL, NVIDIA, Gauge
from queuectl.telemetry.signal.prometheus import PrometheusSource
from queuectl.telemetry.signal.several import SeveralVendors
from tests.unit.test_state import LIVE, RESUMED, World, on

RULE = IdleReclaim(window=300.0, warmup=100.0)
CONFIG = QueueConfig(cluster_queues={"cq": ClusterQueue("cq", idle_reclaim=RULE)})
RUNNING = replace(LIVE, state=State.RUNNING, since=20.0, ready_at=20.0, intent=None)
NOW = 10_000.0


def world(entry: Entry = RUNNING) -> World:
    pods = [on("p1", "n1", started_at=15.0), on("p2", "n2", started_at=16.0)]
    return World(entry, records=[RESUMED, *pods])


class TestGangs:
    def test_a_gang_has_its_queues_rule_and_the_pods_of_its_attempt(self) -> None:
        made = world()
        made.see(replace(on("old", "n3"), attempt=0))
        made.see(replace(on("done", "n3"), phase=PodPhase.SUCCEEDED))
        (gang,) = held_gangs(made.mirror, made.ledger, CONFIG)
        assert (gang.rule, gang.cluster_queue, gang.attempt) == (RULE, "cq", 1)
        assert [(p.name, p.gpus, p.started_at) for p in gang.pods] == [
            ("p1", 8, 15.0),
            ("p2", 8, 16.0),
        ]

    @pytest.mark.parametrize(
        ("asked", "warmup"), [(None, 100.0), (0.0, 100.0), (99.0, 100.0), (500.0, 500.0)]
    )
    def test_a_job_may_ask_for_a_longer_warmup_not_for_a_shorter_one(
        self, asked: float | None, warmup: float
    ) -> None:
        made = world()
        made.see(replace(RESUMED, version=99, warmup=asked))
        (gang,) = held_gangs(made.mirror, made.ledger, CONFIG)
        assert gang.rule == replace(RULE, warmup=warmup)

    @pytest.mark.parametrize(
        ("entry", "ready_at"),
        [
            (RUNNING, 20.0),
            (replace(RUNNING, unready_since=50.0), None),
            (LIVE, None),  # still starting
            (replace(RUNNING, ready_at=None, since=30.0), 30.0),  # from before it was noted
        ],
    )
    def test_it_is_ready_once_all_its_pods_are(self, entry: Entry, ready_at: float | None) -> None:
        made = world(entry)
        (gang,) = held_gangs(made.mirror, made.ledger, CONFIG)
        assert gang.ready_at == ready_at

    def test_a_replaced_pod_starts_the_warm_up_again(self) -> None:
        made = world()
        made.see(on("p2", "n3", version=6, started_at=500.0))
        (gang,) = held_gangs(made.mirror, made.ledger, CONFIG)
        assert gang.ready_at == 500.0

    def test_the_warm_up_starts_again_when_all_pods_are_ready_again(self) -> None:
        """As after a restart of containers in place: the program loads its data and compiles again."""
        lost = handle(RUNNING, PodsLost("a pod is not ready"), 400.0, Rules())
        assert lost is not None
        again = handle(lost.after, PodsReady(), 500.0, Rules())
        assert again is not None
        made = world(again.after)
        (gang,) = held_gangs(made.mirror, made.ledger, CONFIG)
        assert gang.ready_at == 500.0

    def test_gangs_without_gpus_are_none_of_this(self) -> None:
        made = World(RUNNING, records=[RESUMED, on("p1", "n1", requests=Resources({"cpu": 1}))])
        assert not list(held_gangs(made.mirror, made.ledger, CONFIG))

    def test_instances_and_other_vendors_gpus_count_and_nothing_else_does(self) -> None:
        asked = {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.5gb": 2, "amd.com/gpu": 4, "cpu": 9}
        assert accelerators(Resources(asked), GpuWeights()) == 7

    def test_a_resource_that_the_configuration_calls_a_gpu_is_sampled_like_any_other(self) -> None:
        xe = Resources({"example.com/gpu": 2})
        made = World(RUNNING, records=[RESUMED, on("p1", "n1", requests=xe)])
        assert not list(held_gangs(made.mirror, made.ledger, CONFIG))
        accounting = Accounting(gpus=GpuWeights((("example.com/gpu", Fraction(1)),)))
        config = replace(CONFIG, rules=replace(CONFIG.rules, accounting=accounting))
        (gang,) = held_gangs(made.mirror, made.ledger, config)
        assert gang.gpus == 2

    @pytest.mark.sets_aside
    def test_one_that_cannot_be_read_is_set_aside_alone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = world()
        made.ledger.apply([EntryChange(None, replace(RUNNING, uid="u2"), NOW)])
        read = gpu_holders._rule

        def fails(entry: Entry, *rest: Any) -> IdleReclaim:
            if entry.uid == "u2":
                raise RuntimeError("unexpected")
            return read(entry, *rest)

        monkeypatch.setattr(gpu_holders, "_rule", fails)
        assert [gang.uid for gang in held_gangs(made.mirror, made.ledger, CONFIG)] == ["u1"]
        (unit,) = made.mirror.containment
        assert (unit.boundary, unit.key) == (Boundary.SERIES, "u2")


def use(state: UseState, weight: float | None, attempt: int = 1) -> GangUse:
    return GangUse("u1", attempt, state, 0.0, NOW, weight, 1.0, "", weight)


class TestSnapshot:
    @pytest.mark.parametrize(
        ("annotated", "measured", "utilization"),
        [
            (0.5, None, 0.5),
            (None, None, None),
            (0.5, use(UseState.ACTIVE, 0.876), 0.88),
            (0.5, use(UseState.IDLE, 0.001), 0.0),
            (0.0, use(UseState.UNKNOWN, None), None),  # counts as 1: what is unknown is not idle
            (0.5, use(UseState.WARMUP, None), 0.5),  # nothing was measured yet
            (0.5, use(UseState.IDLE, 0.0, attempt=7), 0.5),  # of another start
        ],
    )
    def test_what_was_measured_beats_the_annotation(
        self, annotated: float | None, measured: GangUse | None, utilization: float | None
    ) -> None:
        made = World(RUNNING, records=[replace(RESUMED, utilization=annotated)])
        uses = {} if measured is None else {"u1": measured}
        snapshot_builder = SnapshotBuilder(made.mirror, made.ledger, made.usage, lambda: uses)
        (gang,) = snapshot_builder.freeze(CONFIG, NOW, SolverLimits()).admitted
        assert gang.utilization == utilization

    def test_a_new_look_shows_in_the_next_snapshot_and_an_equal_one_changes_nothing(self) -> None:
        made, uses = world(), {"u1": use(UseState.ACTIVE, 0.5)}
        snapshot_builder = SnapshotBuilder(made.mirror, made.ledger, made.usage, lambda: uses)
        (first,) = snapshot_builder.freeze(CONFIG, NOW, SolverLimits()).admitted
        uses["u1"] = use(UseState.ACTIVE, 0.501)
        (same,) = snapshot_builder.freeze(CONFIG, NOW, SolverLimits()).admitted
        assert same is first
        uses["u1"] = use(UseState.IDLE, 0.0)
        (idle,) = snapshot_builder.freeze(CONFIG, NOW, SolverLimits()).admitted
        assert (idle.utilization, idle.placement) == (0.0, first.placement)


class FakeSource:
    """Returns for every pod the values that the test sets, or nothing at all."""

    trusts = "scrape jobs a"

    def __init__(self) -> None:
        self.busy: float | None = 0.9
        self.windows: list[float] = []
        self.hangs = False
        self.untrusted: tuple[str, ...] = ()

    async def sample(self, window: float, at: float, pods: Collection[PodKey]) -> UtilizationSample:
        if self.hangs:
            await asyncio.Event().wait()
        if self.busy is None:
            raise SourceUnavailable("Prometheus: connection refused")
        self.windows.append(window)
        used = tuple(
            PodUse(namespace, name, 8, self.busy, self.busy, 1.0, 5.0, memory_held=0.0)
            for namespace, name in pods
        )
        return UtilizationSample(at, window, window, 16, used, self.untrusted)

    async def close(self) -> None:
        """Nothing to give back."""


class Watched:
    def __init__(self, evaluation_seconds: float = 0.01) -> None:
        self.source, self.registry = FakeSource(), CollectorRegistry()
        self.now = NOW
        self.made = world()
        self.watch = UseWatch(
            self.source,
            self.made.mirror,
            UseMetrics(self.registry),
            lambda: self.now,
            evaluation_seconds=evaluation_seconds,
            scrape_seconds=30.0,
            timeout=0.05,
        )

    async def sample(self) -> GangUse:
        gangs = list(held_gangs(self.made.mirror, self.made.ledger, CONFIG))
        return (await self.watch.sample(gangs))["u1"]

    def alarm(self, reason: str) -> float | None:
        name = "queuectl_utilization_alarms"
        return self.registry.get_sample_value(name, {"reason": reason})


class TestWatch:
    async def test_longer_windows_are_queried_only_where_a_gang_is_idle(self) -> None:
        watched = Watched()
        assert (await watched.sample()).state is UseState.ACTIVE
        assert watched.source.windows == [120.0]  # four scrapes
        watched.source.busy = 0.0
        assert (await watched.sample()).state is UseState.IDLE
        assert watched.source.windows == [120.0, 120.0, 300.0]

    async def test_an_unavailable_source_makes_every_gang_unknown_and_raises_an_alarm(self) -> None:
        watched = Watched()
        watched.source.busy = 0.0
        assert (await watched.sample()).state is UseState.IDLE
        assert watched.alarm("unreachable") == 0
        watched.source.busy = None
        gone = await watched.sample()
        assert (gone.state, gone.weight) == (UseState.UNKNOWN, None)
        assert "connection refused" in gone.text
        assert watched.alarm("unreachable") == 2  # pods

    async def test_an_unavailable_source_raises_the_alarm_also_without_pods(self) -> None:
        watched = Watched()
        watched.source.busy = None
        assert await watched.watch.sample([]) == {}
        assert watched.alarm("unreachable") == 1

    @pytest.mark.sets_aside
    async def test_a_gang_whose_samples_cannot_be_judged_is_set_aside_until_they_can(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        watched = Watched()
        with monkeypatch.context() as broken:
            broken.setattr("queuectl.state.utilization._judge", None)
            assert (await watched.sample()).state is UseState.UNKNOWN
        (unit,) = watched.made.mirror.containment
        assert (unit.boundary, unit.key) == (Boundary.SERIES, "u1")
        assert (await watched.sample()).state is UseState.ACTIVE
        assert watched.made.mirror.containment.empty

    async def test_a_query_without_an_answer_is_canceled(self) -> None:
        watched = Watched()
        watched.source.hangs = True
        assert (await watched.sample()).state is UseState.UNKNOWN
        assert watched.alarm("unreachable") == 2

    async def test_it_samples_repeatedly_until_it_is_stopped(self) -> None:
        watched = Watched()
        samples: list[Mapping[str, GangUse]] = []
        enough = asyncio.Event()

        def put(uses: Mapping[str, GangUse]) -> None:
            samples.append(uses)
            if len(samples) == 3:
                enough.set()

        task = asyncio.create_task(
            watched.watch.run(lambda: watched.made.ledger, lambda: CONFIG, frozenset, put)
        )
        async with asyncio.timeout(30):
            await enough.wait()
        trust = ("queuectl_utilization_trust_info", {"trusts": "scrape jobs a"})
        assert watched.registry.get_sample_value(*trust) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert {uses["u1"].state for uses in samples} == {UseState.ACTIVE}
        assert watched.alarm("unreachable") is None  # it shows nothing any more
        assert watched.registry.get_sample_value(*trust) is None

    @pytest.mark.parametrize(("took", "pause"), [(0.0, 60.0), (5.0, 55.0), (59.0, 15.0)])
    async def test_evaluations_begin_at_equal_intervals_and_a_slow_source_has_a_rest(
        self, took: float, pause: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Exporters are scraped at each evaluation: with longer intervals, samples would be missing."""
        watched = Watched(evaluation_seconds=60.0)
        pauses: list[float] = []

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)
            raise asyncio.CancelledError

        def put(_: object) -> None:
            watched.now += took
            monkeypatch.setattr(asyncio, "sleep", sleep)

        with pytest.raises(asyncio.CancelledError):
            await watched.watch.run(lambda: watched.made.ledger, lambda: CONFIG, frozenset, put)
        assert pauses == [pause]

    async def test_an_evaluation_that_fails_leaves_no_earlier_result(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An old, low use would go on making its gang a cheap victim."""
        watched = Watched()
        watched.source.busy = 0.0
        assert (await watched.sample()).state is UseState.IDLE

        async def fails(*_: Any) -> UtilizationSample:
            raise RuntimeError("unexpected")

        monkeypatch.setattr(watched.source, "sample", fails)
        put: list[Mapping[str, GangUse]] = []
        with pytest.raises(RuntimeError, match="unexpected"):
            await watched.watch.run(
                lambda: watched.made.ledger, lambda: CONFIG, frozenset, put.append
            )
        (uses,) = put
        assert (uses["u1"].state, uses["u1"].weight) == (UseState.UNKNOWN, None)

    async def test_jobs_that_are_not_trusted_are_logged_once_for_each_change(self) -> None:
        watched = Watched()
        with structlog.testing.capture_logs() as logs:
            for jobs in ((), ("x",), ("x",), ("x", "y"), (), ("x",)):
                watched.source.untrusted = jobs
                await watched.sample()
        said = [line["jobs"] for line in logs if line["event"] == "utilization_untrusted_jobs"]
        assert said == [("x",), ("x", "y"), ("x",)]


class TestSettings:
    async def test_without_a_source_nothing_is_asked(self) -> None:
        assert use_source(Settings()) is None

    async def test_a_prometheus_or_exporters_are_a_source(self) -> None:
        settings = Settings(prometheus_url="http://prometheus:9090/prefix")
        source = use_source(settings)
        assert isinstance(source, PrometheusSource)
        await source.close()
        exporters = UtilizationSettings(exporters="http://a:9400/metrics, http://b:9400/metrics")
        source = use_source(Settings(utilization=exporters))
        assert isinstance(source, ExporterSource)
        await source.close()

    @pytest.mark.parametrize(
        ("url", "exporters", "says"),
        [
            ("http://p", "http://e", "set only one of the two"),
            ("prometheus:9090", "", "QUEUECTL_PROMETHEUS_URL: 'prometheus:9090' is not an"),
            (None, "http://a,b:9400", "QUEUECTL_UTILIZATION__EXPORTERS: 'b:9400' is not an"),
        ],
    )
    def test_a_wrong_one_is_refused_by_name(
        self, url: str | None, exporters: str, says: str
    ) -> None:
        utilization = UtilizationSettings(exporters=exporters)
        with pytest.raises(BadInput, match=says):
            use_source(Settings(prometheus_url=url, utilization=utilization))

    @pytest.mark.parametrize(
        ("given", "selector"),
        [
            ({}, 'job=~"nvidia-dcgm-exporter|dcgm-exporter|gpu-metrics"'),
            ({"vendor": "amd"}, 'job=~"default-metrics-exporter|.*-amdgpu-metrics-exporter"'),
            ({"vendor": "intel"}, 'job=~"intel-xpumanager"'),
            ({"trusted_jobs": "a.b, ns/c-*"}, 'job=~"a[.]b|ns/c-.*"'),
            (
                {"trusted_jobs": "a", "trusted_namespaces": "gpu,ops"},
                'job=~"a",namespace=~"gpu|ops"',
            ),
        ],
    )
    def test_the_jobs_that_count_are_named_or_those_of_the_vendors_installers(
        self, given: dict[str, Any], selector: str
    ) -> None:
        asked = UtilizationSettings(**given)
        assert trust(asked, *asked.vendors).selector == selector

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"trusted_jobs": 'a"} or {'}, "QUEUECTL_UTILIZATION__TRUSTED_JOBS: 'a\"} or {'"),
            ({"trusted_jobs": "a|b"}, "QUEUECTL_UTILIZATION__TRUSTED_JOBS: 'a|b' is not a name"),
            ({"trusted_namespaces": "a b"}, "QUEUECTL_UTILIZATION__TRUSTED_NAMESPACES: 'a b'"),
            ({"trusted_namespaces": "a", "labels": "pod"}, "needs QUEUECTL_UTILIZATION__LABELS"),
        ],
    )
    def test_what_cannot_be_a_name_is_refused_by_the_name_of_its_setting(
        self, given: dict[str, Any], says: str
    ) -> None:
        with pytest.raises(BadInput, match=re.escape(says)):
            trust(UtilizationSettings(**given), "nvidia")

    def test_certificates_that_are_not_there_are_refused_by_name(self) -> None:
        utilization = UtilizationSettings(ca_file=Path("nowhere.pem"))
        with pytest.raises(BadInput, match="QUEUECTL_UTILIZATION__CA_FILE"):
            use_source(Settings(prometheus_url="https://p", utilization=utilization))

    def test_metrics_can_have_other_names_than_the_vendors(self) -> None:
        assert metric_names(UtilizationSettings()) == (NVIDIA,)
        assert metric_names(UtilizationSettings(vendor="amd")) == (AMD,)
        given = MetricNames(busy="use", busy_full=100, coarse="rough", device="host, card")
        (names,) = metric_names(UtilizationSettings(vendor="amd", names=given))
        assert names.busy == Gauge("use", 100.0)
        assert names.coarse == Gauge("rough", 1.0)
        assert names.device == ("host", "card")
        assert names.memory_used == AMD.memory_used

    def test_amds_exporter_can_add_a_prefix_to_its_metrics(self) -> None:
        (names,) = metric_names(UtilizationSettings(vendor="amd", amd_prefix="amd_"))
        assert (names.busy, names.coarse) == (Gauge("amd_gpu_gfx_activity", 100.0), None)
        assert (names.memory_used, names.device) == ("amd_gpu_used_vram", AMD.device)

    async def test_several_vendors_are_one_source(self) -> None:
        asked = UtilizationSettings(vendor="nvidia,amd,intel,amd")
        assert metric_names(asked) == (NVIDIA, AMD, INTEL)
        source = use_source(Settings(prometheus_url="http://p", utilization=asked))
        assert isinstance(source, SeveralVendors)
        assert source.trusts.count("scrape jobs") == 3
        await source.close()

    def test_metrics_of_several_vendors_have_their_own_names(self) -> None:
        asked = UtilizationSettings(vendor="nvidia,amd", names=MetricNames(busy="use"))
        with pytest.raises(BadInput, match="NAMES needs one vendor"):
            metric_names(asked)

    @pytest.mark.parametrize("vendor", ["", "nvidia,", "nvidia, amd", "3dfx"])
    def test_an_unknown_vendor_is_refused(self, vendor: str) -> None:
        with pytest.raises(ValueError, match="vendor"):
            UtilizationSettings(vendor=vendor)
