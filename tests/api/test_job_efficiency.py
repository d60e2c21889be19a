"""The use of one workload, over REST and as ``queuectl eff`` shows it: a figure that is not measured states why, and is not idle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from queuectl.api.app import create_app
from queuectl.api.job_efficiency import job_efficiency
from queuectl.cli.eff import efficiency_lines
from queuectl.domain.accounting import UNITS, Amounts, FlavorGpus
from queuectl.domain.events import Admit, Ended, PodsReady
from queuectl.domain.folding import Fold
from queuectl.domain.job_usage import ContainerSums, JobUsage, UsageSources
from queuectl.domain.jobs import JobOutcome
from queuectl.domain.ledger import Entry
from queuectl.telemetry.metrics import MetricsRecorder
from tests.api.conftest import commit, talking_to
from tests.api.signed import ADMIN, NO_RIGHTS, asking, people, signed_app
from tests.api.support import LIVES, PLACED, FixedDiagnoser, FixedHealth, job, live_through
from tests.api.test_reports import HOUR_AT, TERMS, life, subject
from tests.doubles.store import MemoryStore

GIB = float(1 << 30)
ALL = UsageSources(gpus=True, containers=True)
PATH = "/api/v1/namespaces/team-a/workloads/ann/efficiency"


def ended(attempts: int = 1) -> Entry:
    """A gang of 4 pods with 8 GPUs each, which ran for 10 seconds."""
    events = (Admit(PLACED), PodsReady(), Ended(JobOutcome.SUCCEEDED)) if attempts else ()
    return live_through(job("train"), *events)[-1].after


def gpu_seconds(allocated: int, used: int = 0, unknown: int = 0) -> Amounts:
    return Amounts(
        allocated * UNITS, used * UNITS, unknown=unknown * UNITS, unpriced=allocated * UNITS
    )


def shown(
    usage: JobUsage, sources: UsageSources = ALL, entry: Entry | None = None
) -> dict[str, str]:
    """The lines of the command, by title."""
    view = job_efficiency(entry or ended(), usage, {"n2", "n1"}, None, sources, "EUR", 100.0)
    body: Any = view.model_dump(mode="json", by_alias=True)
    lines = (line.partition(":") for line in efficiency_lines(body))
    return {title: text.strip() for title, _, text in lines}


def test_each_figure_states_which_part_was_measured() -> None:
    sums = ContainerSums(
        90.0, 40.0, 80.0, 160.0, 400.0 * GIB, 1600.0 * GIB, memory_peak=12.5 * GIB
    )  # 40 of the 80 pod-seconds of 20 seconds with 4 pods
    usage = JobUsage(100.0, {"h100": gpu_seconds(7200, used=2700, unknown=3600)}, 1800.0, sums)
    assert shown(usage) == {
        "Workload": "job/team-a/train",
        "State": "Finished at 1970-01-01T00:00:31Z",
        "GPUs": "32 of flavor h100 in 4 pods",
        "Nodes": "2: n1, n2",
        "Elapsed": "0:00:20",
        "GPU use": "75% (50% of the run measured)",
        "CPU use": "50% (50% of the run measured); a pod used 2 of 4 requested cores on average",
        "Memory": "25% (50% of the run measured); a pod used 10 GiB of 40 GiB requested on average, at most 12.5 GiB in a sample",
        "GPU-hours": "2.0: 1.5 productive, 0.5 lost in evictions",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("usage", "sources", "entry", "stated"),
    [
        (JobUsage(), UsageSources(), ended(0), {"GPU use": "it has not started", "CPU use": "it has not started"}),
        (JobUsage(), UsageSources(), None, {"GPU use": "no source of GPU utilization is configured", "Memory": "no Prometheus is configured"}),
        (JobUsage(), UsageSources(gpus=True), None, {"GPU use": "the usage ledger has no hours of it", "CPU use": "no Prometheus is configured"}),
        (JobUsage(flavors={"h100": gpu_seconds(60, unknown=60)}), ALL, None, {"GPU use": "no valid sample of its GPUs", "CPU use": "Prometheus has no sample of its pods"}),
        (JobUsage(containers=ContainerSums(1.0, 10.0, cpu_seconds=5.0)), ALL, None, {"CPU use": "its pods request no CPU", "Memory": "its pods request no memory"}),
    ],
)  # fmt: skip
def test_a_figure_that_is_not_known_states_why(
    usage: JobUsage, sources: UsageSources, entry: Entry | None, stated: Mapping[str, str]
) -> None:
    lines = shown(usage, sources, entry)
    for title, why in stated.items():
        assert lines[title].startswith(f"unknown: {why}"), title


async def stored() -> MemoryStore:
    """Ann's gang used a quarter of 8 priced GPUs for half an hour, and has finished on two nodes."""
    store = MemoryStore()
    for name, events in LIVES.items():
        await commit(store, live_through(job(name), *events))
    changes = live_through(job("ann"), Admit(PLACED), PodsReady(), Ended(JobOutcome.SUCCEEDED))
    await commit(store, changes)
    assert changes[-1].after.placement is None
    fold = Fold(HOUR_AT, HOUR_AT + 3600.0, TERMS)
    who = replace(subject("ann", "ann"), uid=changes[-1].after.uid)
    fold.workload(None, life(who, FlavorGpus("h100", "spot", 8), 900.0), ())
    await store.usage.keep(
        fold, over=None, until=HOUR_AT + 3600.0, marks=(), epoch=store.database.epoch, free={}
    )
    return store


async def test_a_finished_workload_has_its_nodes_gpu_hours_and_cost() -> None:
    app = create_app(await stored(), FixedHealth(), MetricsRecorder().registry, FixedDiagnoser())
    async with talking_to(app) as api:
        body = (await api.get(PATH)).json()
        by_uid = (await api.get(f"/api/v1/workloads/{body['uid']}/efficiency")).json()
        running = (await api.get(PATH.replace("ann", "running"))).json()
    assert by_uid == body
    assert (body["state"], body["nodes"]) == ("Finished", ["node-1", "node-2"])
    assert (body["flavors"], body["attempts"], body["elapsedSeconds"]) == (["h100"], 1, 20.0)
    assert body["gpuHours"]["allocated"] == body["gpuHours"]["unknown"] == 4.0
    assert body["cost"] == {"amount": 8.0, "currency": "USD", "unpricedGpuHours": 0.0}
    assert (running["state"], running["nodes"]) == ("Running", ["node-1", "node-2"])
    assert (running["gpuHours"], running["cost"]) == (None, None)


async def test_it_needs_the_right_to_read_the_workload() -> None:
    app = signed_app(await stored(), people())
    for token, status in ((NO_RIGHTS, 403), (ADMIN, 200)):
        async with asking(app, token) as client:
            assert (await client.get(PATH)).status_code == status
