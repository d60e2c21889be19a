"""All sources agree about the same world, and none reports a false idle: with a real Prometheus.

The world is tests/utilization/stage.py: a simulation of 15 seconds, sampled by all sources at once.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from queuectl.domain.errors import SourceUnavailable
from queuectl.domain.utilization import SourceFault, UseState
from queuectl.localcluster.prometheus import check_rules
from queuectl.state.utilization import UseTracker, source_faults
from queuectl.telemetry.signal.names import AMD, HONORED, NVIDIA, RENAMED, Gauge
from queuectl.telemetry.signal.prometheus import PrometheusSource
from queuectl.telemetry.signal.queries import Recorded
from queuectl.telemetry.signal.trust import Trust
from tests.utilization.stage import (
    AMD_SCENARIOS,
    DIES,
    RECENT,
    RULE,
    RULES,
    RULES_OVER,
    SCENARIOS,
    SCRAPE,
    TEAM,
    TRUST,
    Scenario,
    Stage,
    Watcher,
    later,
    simulated,
    until,
)

pytestmark = [
    pytest.mark.system,
    pytest.mark.alone,
    pytest.mark.asyncio(loop_scope="module"),
]

SOURCES = ["honored", "renamed", "recorded", "recorded, renamed", "exporters"]
AMD_SOURCES = ["amd", "amd exporters"]


ATTEMPTS = 4  # times at most


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """The simulation is repeated if the machine stalled."""
    for number in range(1, ATTEMPTS + 1):
        async with simulated(tmp_path_factory.mktemp("rules")) as stage:
            if stage.on_time or number == ATTEMPTS:
                yield stage
                return


def last(watcher: Watcher, scenario: Scenario) -> tuple[UseState, str]:
    use = watcher.results[-1][1][f"{scenario.namespace}/{scenario.name}"]
    return use.state, use.text


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    "scenario", SCENARIOS, ids=lambda scenario: f"{scenario.namespace}-{scenario.name}"
)
async def test_each_source_reports_the_gpu_use_of_each_gang(
    stage: Stage, source: str, scenario: Scenario
) -> None:
    state, text = last(stage.watchers[source], scenario)
    assert state in scenario.may_be, text


@pytest.mark.parametrize("source", AMD_SOURCES)
@pytest.mark.parametrize("scenario", AMD_SCENARIOS, ids=lambda scenario: scenario.name)
async def test_metrics_of_another_vendor_need_other_names_only(
    stage: Stage, source: str, scenario: Scenario
) -> None:
    state, text = last(stage.watchers[source], scenario)
    assert state in scenario.may_be, text


@pytest.mark.parametrize("source", [*SOURCES, *AMD_SOURCES])
async def test_no_busy_gang_is_ever_reported_as_idle(stage: Stage, source: str) -> None:
    """The whole simulation has no false idle, although some gangs are idle."""
    watcher = stage.watchers[source]
    world = stage.amd if source in AMD_SOURCES else stage.world
    idle = [
        (at, uid, use.text)
        for at, uses in watcher.results
        for uid, use in uses.items()
        if use.state is UseState.IDLE
    ]
    smear = RULES_OVER if "recorded" in source else 0.0
    assert [one for one in idle if not world.idle_by_right(one[1], one[0], smear)] == []
    assert idle


@pytest.mark.parametrize("source", SOURCES)
async def test_the_measured_values_are_those_of_the_simulation(stage: Stage, source: str) -> None:
    uses = stage.watchers[source].results[-1][1]
    half = uses[f"{TEAM}/one-rank-works"]
    assert half.utilization == pytest.approx(0.45, abs=0.02)
    assert uses[f"{TEAM}/busy"].utilization == pytest.approx(0.9, abs=0.02)
    assert uses[f"{TEAM}/forged-beside"].utilization == pytest.approx(0.9, abs=0.02)
    assert uses[f"{TEAM}/idle"].weight == pytest.approx(0.0)
    for blind in ("gpu-lost", "exporter-dies", "shared-busy"):
        assert uses[f"{TEAM}/{blind}"].utilization is None
        assert uses[f"{TEAM}/{blind}"].weight is None


@pytest.mark.parametrize("source", SOURCES)
async def test_missing_profiling_metrics_and_missing_gpus_are_reported(
    stage: Stage, source: str
) -> None:
    wrong = stage.watchers[source].wrong
    assert wrong[SourceFault.DCP_MISSING] == 3
    assert wrong[SourceFault.PARTIAL] >= 3
    assert SourceFault.NO_MATCH not in wrong
    assert SourceFault.WRONG_LABELS not in wrong


@pytest.mark.parametrize("source", SOURCES)
async def test_a_past_gap_in_the_window_is_reported(stage: Stage, source: str) -> None:
    use = stage.watchers[source].results[-1][1][f"{TEAM}/gap"]
    assert "samples are there" in use.text
    assert "does nothing lately" in use.text  # "lately": the recent samples exist
    assert RULE.window > DIES


# ---- trusted exporters


@pytest.mark.parametrize("source", ["honored", "renamed", "recorded", "recorded, renamed"])
async def test_jobs_that_export_gpus_and_are_not_trusted_are_named(
    stage: Stage, source: str
) -> None:
    recent = stage.watchers[source].recent
    assert recent is not None
    assert recent.untrusted == ("kubernetes-pods",)


@pytest.mark.parametrize("rules", [False, True], ids=["raw", "recorded"])
@pytest.mark.parametrize(
    ("trust", "wrong"),
    [
        (Trust(("dcgm-exporter",), ("gpu-operator",)), None),
        (Trust(("dcgm-exporter",), ("tenant",)), SourceFault.UNTRUSTED),
        (Trust(("kubernetes-*",), ("gpu-operator",)), SourceFault.UNTRUSTED),
        (Trust(("dcgm",)), SourceFault.UNTRUSTED),
    ],
    ids=str,
)
async def test_a_job_is_trusted_by_its_whole_name_and_by_the_namespace_of_its_exporters(
    stage: Stage, trust: Trust, wrong: SourceFault | None, rules: bool
) -> None:
    recorded = Recorded(SCRAPE, every=SCRAPE, over=RULES_OVER, trust=trust)
    url = stage.servers["renamed"].url
    source = PrometheusSource(
        url, trust=trust, scrape_seconds=SCRAPE, rules=rules, recorded=recorded
    )
    gangs = list(stage.world.gangs.values())
    known = {pod.key for gang in gangs for pod in gang.pods}
    sample = await source.sample(RECENT, time.time(), known)
    await source.close()
    named = {row.pod for row in sample.pods}
    assert ("busy-0" in named) is (wrong is None)
    assert not named & {"forged-alone-0", "mine"}
    if wrong is not None:
        assert set(source_faults(gangs, sample, SCRAPE)) == {wrong}


# ---- a Prometheus that is not set up as it should be


async def judged(stage: Stage, source: PrometheusSource, at: float) -> dict[SourceFault, int]:
    """Check that it reports no gang as idle. Returns its faults."""
    gangs = list(stage.world.gangs.values())
    known = {pod.key for gang in gangs for pod in gang.pods}
    try:
        recent = await source.sample(RECENT, at, known)
        tracker = UseTracker(SCRAPE)
        windows = tracker.windows(gangs, recent)
        longer = {window: await source.sample(window, at, known) for window in windows}
        uses = tracker.judge(gangs, recent, longer)
        assert {use.state for use in uses.values()} == {UseState.UNKNOWN}
        return source_faults(gangs, recent, SCRAPE)
    finally:
        await source.close()


@pytest.mark.parametrize(("server", "labels"), [("honored", RENAMED), ("renamed", HONORED)])
async def test_labels_that_name_the_exporters_pods_are_an_alarm_not_idleness(
    stage: Stage, server: str, labels: object
) -> None:
    source = PrometheusSource(
        stage.servers[server].url,
        scrape_seconds=SCRAPE,
        labels=labels,  # type: ignore[arg-type]
    )
    assert set(await judged(stage, source, time.time())) == {SourceFault.WRONG_LABELS}


@pytest.mark.parametrize("rules", [False, True], ids=["raw", "recorded"])
async def test_a_failed_scrape_does_not_remove_the_gpus(stage: Stage, rules: bool) -> None:
    """The fault is still in the labels, as on a machine that stalled for a moment."""
    world, server = stage.world, stage.servers["honored"]
    places = {scenario.place for scenario in SCENARIOS} - {"n-exporter-dies"}
    alive = places | {later(place) for place in places if "again" in place}
    source = PrometheusSource(server.url, scrape_seconds=SCRAPE, labels=RENAMED, rules=rules)
    metric = f"{'queuectl:gpus' if rules else NVIDIA.busy.name}{{{TRUST.selector}}}"
    for node in alive:
        world.fail(node)
    try:
        await until(lambda: server.query(metric) == [])
        gangs = list(world.gangs.values())
        sample = await source.sample(
            4 * RECENT, time.time(), {pod.key for g in gangs for pod in g.pods}
        )
        assert set(source_faults(gangs, sample, SCRAPE)) == {SourceFault.WRONG_LABELS}
    finally:
        for node in alive:
            world.repair(node)
        await source.close()
    await until(lambda: server.query(metric) != [])


async def test_metrics_that_no_exporter_has_are_an_alarm_and_not_idleness(stage: Stage) -> None:
    names = replace(NVIDIA, busy=Gauge("no_such_metric"), coarse=None)
    source = PrometheusSource(
        stage.servers["honored"].url, names=names, scrape_seconds=SCRAPE, rules=False
    )
    assert set(await judged(stage, source, time.time())) == {SourceFault.NO_MATCH}


async def test_late_data_is_stale_and_not_idle(stage: Stage) -> None:
    """The server lags, or the local clock is ahead of it. The query is repeated if its answer took too long."""
    for _ in range(5):
        source = PrometheusSource(stage.servers["honored"].url, scrape_seconds=SCRAPE)
        began = time.time()
        wrong = await judged(stage, source, began + RECENT - 1.0)
        if time.time() - began < SCRAPE:
            break
    assert wrong[SourceFault.STALE] > 10


async def test_a_longer_scrape_interval_than_configured_is_partial_and_not_idle(
    stage: Stage,
) -> None:
    source = PrometheusSource(stage.servers["honored"].url, scrape_seconds=SCRAPE / 2)
    gangs = list(stage.world.gangs.values())
    known = {pod.key for gang in gangs for pod in gang.pods}
    recent = await source.sample(RECENT * 4, time.time(), known)
    await source.close()
    assert source_faults(gangs, recent, SCRAPE / 2)[SourceFault.PARTIAL] > 10


async def test_a_query_that_the_server_refuses_is_reported(stage: Stage) -> None:
    names = replace(NVIDIA, device=("not a label",))
    source = PrometheusSource(stage.servers["honored"].url, names=names, rules=False)
    with pytest.raises(SourceUnavailable, match="refuses"):
        await judged(stage, source, time.time())


async def test_a_server_that_is_down_or_hangs_is_unavailable_and_its_restart_makes_no_gang_idle(
    stage: Stage,
) -> None:
    server = stage.servers["renamed"]
    source = PrometheusSource(server.url, scrape_seconds=SCRAPE, timeout=0.5, rules=False)
    server.pause()
    with pytest.raises(SourceUnavailable):
        await source.sample(RECENT, time.time(), {(TEAM, "idle-0")})
    server.resume()
    server.kill()
    with pytest.raises(SourceUnavailable):
        await source.sample(RECENT, time.time(), {(TEAM, "idle-0")})
    server.run()
    patient = PrometheusSource(server.url, scrape_seconds=SCRAPE, rules=False)
    watcher = Watcher("restarted", patient)
    uses = await watcher.sample(list(stage.world.gangs.values()))
    await source.close()
    await patient.close()
    at = watcher.results[-1][0]
    idle = [uid for uid, use in uses.items() if use.state is UseState.IDLE]
    assert [uid for uid in idle if not stage.world.idle_by_right(uid, at)] == []


async def test_rules_for_metrics_of_one_vendor_do_not_count_for_another(stage: Stage) -> None:
    """They are recorded in that server, but not configured."""
    url = stage.servers["honored"].url
    source = PrometheusSource(url, names=AMD, trust=TRUST, scrape_seconds=SCRAPE)
    known = {
        pod.key
        for gang in stage.amd.gangs.values()
        for pod in gang.pods
        if pod.name.startswith("amd")
    }
    sample = await source.sample(RECENT, time.time(), known)
    await source.close()
    assert {(row.namespace, row.pod) for row in sample.pods} == known


async def test_promtool_accepts_the_recording_rules(stage: Stage, tmp_path: Path) -> None:
    assert "SUCCESS" in check_rules(RULES)
