"""Renders the dashboards for the documentation: ``python -m tests.system.pictures [--answers FILE] [FOLDER]``, about ten minutes.

Three teams run gangs on 512 simulated GPUs for some minutes: gangs of all sizes start, borrow, are preempted, are idle, hang, and
cannot be measured for a while. A real Prometheus answers the queries of the panels, and Grafana's own components render the
results (tests/grafana). With ``--answers`` the results are kept in a file; if the file exists, it is rendered without a new run.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit

from PIL import Image

from queuectl.demo import manifests as m
from queuectl.demo.manifests import Document, Pods
from queuectl.demo.scenario import with_idle_reclaim
from queuectl.domain.quantity import GPU
from queuectl.localcluster import NodeSpec
from queuectl.localcluster.exporter import PROFILE, Exporters
from queuectl.localcluster.layout import free_ports
from queuectl.localcluster.progress import LineProgress
from queuectl.localcluster.prometheus import Prometheus, exporters_job
from queuectl.objects.keys import MAX_EXECUTION, PREFIX
from tests.grafana.answers import Answers
from tests.grafana.render import rendered
from tests.system.house import BLOCK, RACK, House, house

ROOT: Final = Path(__file__).parents[2]
NODES: Final = NodeSpec(blocks=2, racks_per_block=4, hosts_per_rack=8)
SCRAPE: Final = 1.0
MINUTES: Final = 6.0
QUOTAS: Final = {"language": 224, "vision": 144, "speech": 80}
LENT: Final = 64  # the quota of a queue of another cohort, which has no gangs
SETTINGS: Final = {
    "QUEUECTL_UTILIZATION__LOOK_SECONDS": "2",
    "QUEUECTL_UTILIZATION__SCRAPE_SECONDS": str(SCRAPE),
    "QUEUECTL_UTILIZATION__PATIENCE_SECONDS": "5",
    "QUEUECTL_TELL_AFTER_SECONDS": "2",
    "QUEUECTL_ACCOUNT_SECONDS": "4",
}
FAIL_SECONDS: Final = "kwok.queuectl.dev/fail-after-seconds"
START_SECONDS: Final = "kwok.queuectl.dev/start-seconds"
PROFILES: Final = (
    *("busy=0.9", "busy=0.85", "busy=0.7", "busy=0.75", "busy=0.6", "busy=0.15"),
    *("busy=0.9 for 15; idle", "idle", "stuck"),
)


@contextmanager
def stage() -> Iterator[tuple[House, Prometheus, Exporters]]:
    """A control plane with GPU exporters, and one Prometheus that scrapes them and queuectl."""
    (port,) = free_ports(1)
    with Exporters() as exporters:
        scrapes = [
            exporters_job(exporters.targets_url, honor_labels=False),
            {"job_name": "queuectl", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]},
        ]
        with Prometheus.start(
            scrapes, scrape_seconds=SCRAPE, progress=LineProgress()
        ) as prometheus:
            measured = {
                "QUEUECTL_PROMETHEUS_URL": prometheus.url,
                "QUEUECTL_METRICS_LISTEN": f"127.0.0.1:{port}",
            }
            with house(NODES, SETTINGS | measured, training_operator=False) as built:
                assert urlsplit(built.controller.metrics).port == port
                for node, gpus in built.cluster.nodes.gpus().items():
                    exporters.add_node(node, gpus)
                with exporters.following(built.cluster.client):
                    yield built, prometheus, exporters


def configuration() -> Iterator[Document]:
    """Three teams in one cohort, which borrows from another cohort of the same root."""
    yield m.topology("gpus", BLOCK, RACK)
    yield m.flavor("h100", topology="gpus")
    yield m.priority_class("batch", 10)
    yield m.priority_class("urgent", 100)
    for cohort in ("research", "production"):
        yield {
            "apiVersion": "queuectl.dev/v1",
            "kind": "Cohort",
            "metadata": {"name": cohort},
            "spec": {"parentName": "company"},
        }
    lender = m.cluster_queue("serving", "h100", {GPU: LENT, "cpu": "1M"})
    yield lender | {"spec": lender["spec"] | {"cohortName": "production"}}
    for team, gpus in QUOTAS.items():
        queue = with_idle_reclaim(m.cluster_queue(team, "h100", {GPU: gpus, "cpu": "1M"}))
        limits = {"borrowingLimit": gpus // 2, "lendingLimit": gpus // 2}
        queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0] |= limits
        queue["spec"] |= {
            "cohortName": "research",
            "admissionScope": {"admissionMode": "UsageBasedAdmissionFairSharing"},
            "preemption": {
                "withinClusterQueue": "LowerPriority",
                "reclaimWithinCohort": "LowerPriority",
            },
        }
        yield queue
        yield m.local_queue(team, "training", team)
        yield m.local_queue(team, "trials", team)
    yield {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "metadata": {"name": "default"},
        "admissionFairSharing": {"usageHalfLifeTime": "1h", "usageSamplingInterval": "5s"},
    }


def live(built: House, exporters: Exporters, random: Random, until: float) -> None:
    """Gangs are submitted at random. In the middle of the run the exporter of one node fails for a minute."""
    began = time.time()
    number, dead = 0, "b0-r1-h3"
    while time.time() < until:
        passed = (time.time() - began) / (until - began)
        (exporters.kill if 0.45 < passed < 0.6 else exporters.revive)(dead)
        number += 1
        built.cluster.client.create(*_gang(random, number))
        time.sleep(random.expovariate(1 / 1.5))


def _gang(random: Random, number: int) -> tuple[str, Document]:
    team = random.choices(list(QUOTAS), weights=[5, 3, 3])[0]
    pods = random.choices([1, 2, 4, 8, 16], weights=[4, 4, 4, 3, 1])[0]
    gpus = 8 if pods > 1 else random.choice([1, 2, 4, 8])
    urgent = random.random() < 0.2
    profile = random.choices(PROFILES, weights=[4, 4, 4, 4, 3, 2, 2, 1.5, 0.8])[0]
    level = random.choice([RACK, None]) if pods <= 8 else BLOCK
    played = {
        PROFILE: profile,
        START_SECONDS: f"{random.choice([0.2, 0.5, 1, 2, 3, 4, 8]):g}",
        m.TERMINATE_SECONDS: f"{random.uniform(2, 8):.1f}",
    }
    if random.random() < 0.08:
        played[FAIL_SECONDS] = "9"
    cores = random.choice([32, 64, 96])  # of a node's 96: some gangs leave GPUs without cores
    shape = Pods(pods, gpus, str(cores), preferred=level, annotations=played)
    document = m.job(
        f"gang-{number}",
        team,
        random.choice(["training", "training", "trials"]),
        shape,
        seconds=round(random.uniform(12, 60), 1),
        priority_class="urgent" if urgent else "batch",
    )
    if random.random() < 0.04:
        document["metadata"]["labels"][PREFIX + MAX_EXECUTION] = "10"
    return f"/apis/batch/v1/namespaces/{team}/jobs", document


def answers() -> dict[str, Any]:
    """Runs the gangs, and asks for the results of all queries."""
    with stage() as (built, prometheus, exporters):
        built.cluster.client.apply(*m.namespaces(QUOTAS))
        built.rest.apply(configuration())
        since = time.time()
        live(built, exporters, Random(7), since + 60 * MINUTES)
        asked = Answers(prometheus.url, since, time.time())
        paths = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
        return asked.document([json.loads(path.read_text()) for path in paths])


def save(screenshot: bytes, target: Path) -> None:
    """With 128 colors, so that the repository stays small."""
    Image.open(BytesIO(screenshot)).convert("RGB").quantize(128).save(target, optimize=True)


def main(folder: Path, kept: Path | None) -> None:
    if kept is not None and kept.exists():
        document = json.loads(kept.read_text())
    else:
        document = answers()
        if kept is not None:
            kept.write_text(json.dumps(document))
    for uid, screenshot in rendered(document):
        target = folder / f"{uid.replace('queuectl-', 'dashboard-')}.png"
        save(screenshot, target)
        print(f"{target.name}: {target.stat().st_size // 1024} kB", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--answers", type=Path)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "docs" / "images")
    arguments = parser.parse_args()
    main(arguments.folder, arguments.answers)
