"""Faults of GPUs from a real Prometheus: each signal, missing data, and a Prometheus that is down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from queuectl.domain.errors import SourceUnavailable
from queuectl.domain.node_health import HealthSignal, NodeHealthRules
from queuectl.localcluster.exporter import Dialect, Exporters
from queuectl.localcluster.gpus import GpuPod, parse_profile
from queuectl.localcluster.prometheus import Prometheus, exporters_job
from queuectl.telemetry.signal.health import VENDORS_HEALTH
from queuectl.telemetry.signal.prometheus import PrometheusSource
from queuectl.telemetry.signal.several import SeveralVendors
from queuectl.telemetry.signal.trust import Trust
from tests.utilization.stage import SCRAPE, until

pytestmark = [pytest.mark.system, pytest.mark.gpus]

RULES = NodeHealthRules()
NODES = ("n-xid", "n-app", "n-ecc", "n-remap", "n-check", "n-warns", "n-hot", "n-well", "n-dies")
FAULTS = (
    ("n-xid", "DCGM_FI_DEV_XID_ERRORS", 79),
    ("n-app", "DCGM_FI_DEV_XID_ERRORS", 31),
    ("n-ecc", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 2),
    ("n-remap", "DCGM_FI_DEV_ROW_REMAP_FAILURE", 1),
    ("n-check", "DCGM_EXP_GPU_HEALTH_STATUS", 20),
    ("n-warns", "DCGM_EXP_GPU_HEALTH_STATUS", 10),
    ("n-hot", "DCGM_FI_DEV_THERMAL_VIOLATION", 1),
    ("n-dies", "DCGM_FI_DEV_XID_ERRORS", 79),
    *(
        ("n-well", metric, 0)
        for metric in ("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "DCGM_FI_DEV_THERMAL_VIOLATION")
    ),
)  # fmt: skip
AMD_NODES = ("a-ecc", "a-check", "a-hot", "a-well")
INTEL_NODES = ("i-cache", "i-other", "i-two", "i-well")
OTHER_VENDORS = (
    ("a-ecc", "gpu_ecc_uncorrect_total", 2),
    ("a-ecc", "gpu_health", 1),
    ("a-check", "gpu_health", 0),
    ("a-hot", "gpu_violation_hbm_thermal_residency_percentage", 80),
    ("a-well", "gpu_ecc_uncorrect_total", 0),
    ("a-well", "gpu_health", 1),
    ("a-well", "gpu_violation_socket_thermal_residency_percentage", 10),
    ("i-cache", 'xpum_cache_errors_total{type="uncorrectable"}', 1),
    ("i-other", 'xpum_non_compute_errors_total{type="uncorrectable"}', 3),
    ("i-two", 'hw_errors_total{hw_type="gpu",error_type="uncorrectable"}', 1),
    ("i-well", 'xpum_cache_errors_total{type="correctable"}', 9),
    ("i-well", 'xpum_cache_errors_total{type="uncorrectable"}', 0),
)
FOUND_OTHERS = {
    ("a-ecc", HealthSignal.ECC),
    ("a-check", HealthSignal.CHECK),
    ("a-hot", HealthSignal.THERMAL),
    ("i-cache", HealthSignal.ECC),
    ("i-other", HealthSignal.ECC),
    ("i-two", HealthSignal.ECC),
}
FOUND = {
    ("n-xid", HealthSignal.XID),
    ("n-ecc", HealthSignal.ECC),
    ("n-remap", HealthSignal.ROW_REMAP),
    ("n-check", HealthSignal.CHECK),
    ("n-hot", HealthSignal.THERMAL),
}
THROTTLED = 300 * 10**9  # nanoseconds, in a window of 300 s


@pytest.fixture(scope="module")
def exporters() -> Iterator[Exporters]:
    with Exporters() as started:
        for node in NODES:
            started.add_node(node, gpus=2)
        for vendor, nodes in (("amd", AMD_NODES), ("intel", INTEL_NODES)):
            for node in nodes:
                started.add_node(node, gpus=2, dialect=Dialect(vendor=vendor))
        for node, metric, value in (*FAULTS, *OTHER_VENDORS):
            started.fault(node, 1, metric, value)
        yield started


@pytest.fixture(scope="module")
def server(exporters: Exporters) -> Iterator[Prometheus]:
    with Prometheus.start(
        [exporters_job(exporters.targets_url, honor_labels=True)], scrape_seconds=SCRAPE
    ) as started:
        yield started


def source(server: Prometheus, *jobs: str, vendor: str = "nvidia") -> PrometheusSource:
    trust, health = Trust(jobs or ("dcgm-exporter",)), VENDORS_HEALTH[vendor]
    return PrometheusSource(server.url, trust=trust, scrape_seconds=SCRAPE, health=health)


async def test_each_signal_is_found_on_its_node_and_no_other(
    exporters: Exporters, server: Prometheus
) -> None:
    await until(partial(all_scraped, server))
    exporters.fault("n-hot", 1, "DCGM_FI_DEV_THERMAL_VIOLATION", THROTTLED)
    asked, found = source(server), set[tuple[str, HealthSignal]]()
    for _ in range(40):
        faults = await asked.faults(RULES, time.time())
        found = {(one.node, one.signal) for one in faults}
        if FOUND | {("n-dies", HealthSignal.XID)} == found:
            break
        await asyncio.sleep(0.25)
    assert found == FOUND | {("n-dies", HealthSignal.XID)}
    assert {one.device for one in faults} == {"GPU 1"}
    assert "XID 79" in {one.text for one in faults}
    exporters.kill("n-dies")  # Prometheus knows that it has ended
    for _ in range(40):
        faults = await asked.faults(RULES, time.time())
        if "n-dies" not in {one.node for one in faults}:
            break
        await asyncio.sleep(0.25)
    assert "n-dies" not in {one.node for one in faults}
    # Old samples: at this time, Prometheus still returns the last ones, and they are older than two scrapes.
    later = await asked.faults(RULES, time.time() + 10 * SCRAPE)
    assert {one.signal for one in later} <= {HealthSignal.THERMAL}
    await asked.close()


async def test_the_signals_of_amd_and_intel_are_found_alongside_those_of_nvidia(
    server: Prometheus,
) -> None:
    asked = SeveralVendors([source(server, vendor=vendor) for vendor in VENDORS_HEALTH])
    rules = replace(RULES, signals=(HealthSignal.ECC, HealthSignal.THERMAL, HealthSignal.CHECK))
    found = set[tuple[str, HealthSignal]]()
    for _ in range(60):
        faults = await asked.faults(rules, time.time())
        found = {(one.node, one.signal) for one in faults if not one.node.startswith("n-")}
        if found == FOUND_OTHERS:
            break
        await asyncio.sleep(0.25)
    assert found == FOUND_OTHERS
    assert {one.node for one in faults} >= {"n-ecc", "n-check"}
    await asked.close()


async def test_series_of_untrusted_jobs_are_not_read(server: Prometheus) -> None:
    asked = source(server, "another-exporter")
    assert await asked.faults(RULES, time.time()) == []
    await asked.close()


async def test_a_prometheus_that_is_down_is_not_an_answer() -> None:
    asked = PrometheusSource("http://127.0.0.1:9", timeout=1.0)
    with pytest.raises(SourceUnavailable):
        await asked.faults(RULES, time.time())
    await asked.close()


def all_scraped(server: Prometheus) -> bool:
    return len(server.query("up == 1")) == len((*NODES, *AMD_NODES, *INTEL_NODES))


@pytest.mark.parametrize("honor", [True, False])
async def test_clocks_name_the_pods_of_the_gpus(exporters: Exporters, *, honor: bool) -> None:
    """Also where Prometheus renames the labels of the exporter."""
    since = time.time()
    for number, profile in enumerate(("busy", "slow")):
        pod, node = f"rank-{number}", ("n-well", "n-app")[number]
        load = GpuPod("team", pod, f"{pod}-{honor}", node, 1, parse_profile(profile), since)
        exporters.put(load)
    job = exporters_job(exporters.targets_url, honor_labels=honor)
    with Prometheus.start([job], scrape_seconds=SCRAPE) as server:
        asked, window, found = source(server), 4 * SCRAPE, dict[tuple[str, str], float]()
        for _ in range(60):
            clocks = await asked.clocks(window, time.time())
            found = {one.pod: one.mhz for one in clocks if one.pod[0] == "team"}  # others are free
            if len(found) == 2:
                break
            await asyncio.sleep(0.25)
        assert found == {("team", "rank-0"): 1980.0, ("team", "rank-1"): 990.0}
        assert await asked.clocks(window, time.time() + 100) == []
        await asked.close()
    for number in (0, 1):
        exporters.take(f"rank-{number}-{honor}")
