"""Draws every dashboard for the documentation: ``python -m tests.system.pictures [FOLDER]``, about ten minutes.

Three teams live on 512 played GPUs for some minutes: gangs of all sizes come and go, borrow, are preempted, idle, hang, and
cannot be measured for a while. What a real Prometheus then answers to the panels' queries is drawn (deploy/grafana/preview.py).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
from matplotlib.figure import Figure
from PIL import Image

from deploy.grafana.preview import draw
from deploy.grafana.series import Series
from queuectl.demo import manifests as m
from queuectl.demo.manifests import Document, Pods
from queuectl.demo.scenario import hurried
from queuectl.domain.quantity import GPU
from queuectl.localcluster import NodeSpec
from queuectl.localcluster.exporter import PROFILE, Exporters
from queuectl.localcluster.layout import free_ports
from queuectl.localcluster.progress import LineProgress
from queuectl.localcluster.prometheus import Prometheus, exporters_job
from queuectl.objects.keys import MAX_EXECUTION, PREFIX
from tests.system.house import BLOCK, RACK, House, house

ROOT: Final = Path(__file__).parents[2]
NODES: Final = NodeSpec(blocks=2, racks_per_block=4, hosts_per_rack=8)
SCRAPE: Final = 1.0
MINUTES: Final = 6.0
CHOSEN: Final = {"$cluster_queue": ".*", "$resource": GPU, "$__rate_interval": "20s"}
QUOTAS: Final = {"language": 224, "vision": 144, "speech": 80}
LENT: Final = 64  # the quota of a queue of another cohort, which nobody uses
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


@dataclass(frozen=True)
class Answers:
    """Of a Prometheus, over the time from ``since`` to ``until`` (unix seconds), a point every ``step`` seconds."""

    prometheus: Prometheus
    since: float
    until: float
    step: float = 2.0

    def now(self, expr: str) -> list[Series]:
        """At the end."""
        found = self._ask("query", expr, time=self.until)
        return [Series(one["metric"], _points([one["value"]])) for one in found]

    def over_time(self, expr: str) -> list[Series]:
        """All the time."""
        found = self._ask("query_range", expr, start=self.since, end=self.until, step=self.step)
        return [Series(one["metric"], _points(one["values"])) for one in found]

    def _ask(self, path: str, expr: str, **when: float) -> list[dict[str, Any]]:
        for variable, chosen in CHOSEN.items():
            expr = expr.replace(variable, chosen)
        answer = httpx2.get(
            f"{self.prometheus.url}/api/v1/{path}",
            params={"query": expr, **when},
            trust_env=False,
            timeout=30.0,
        ).json()
        if answer["status"] != "success":
            raise RuntimeError(f"{expr}: {answer['error']}")
        return [
            one
            for one in answer["data"]["result"]
            if any(v == v for _, v in _points(one.get("values") or [one["value"]]))
        ]


def _points(found: list[list[Any]]) -> list[tuple[float, float]]:
    """Without those that are no number."""
    return [(float(t), float(v)) for t, v in found if v != "NaN"]


@contextmanager
def stage() -> Iterator[tuple[House, Prometheus, Exporters]]:
    """A control plane whose GPUs are measured, and one Prometheus that scrapes them and queuectl."""
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
    """Three teams in a cohort of the company's, which borrows from another."""
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
        queue = hurried(m.cluster_queue(team, "h100", {GPU: gpus, "cpu": "1M"}))
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
    """Gangs come at random; in the middle an exporter dies and comes back."""
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
    cores = random.choice([32, 64, 96])  # of a node's 96: some leave GPUs that nobody can use
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


def save(figure: Figure, target: Path) -> None:
    """With few colours, so that the repository stays small."""
    drawn = BytesIO()
    figure.savefig(drawn, dpi=80)
    Image.open(drawn).convert("RGB").quantize(128).save(target, optimize=True)


def main(folder: Path) -> None:
    with stage() as (built, prometheus, exporters):
        built.cluster.client.apply(*m.namespaces(QUOTAS))
        built.rest.apply(configuration())
        since = time.time()
        live(built, exporters, Random(7), since + 60 * MINUTES)
        answers = Answers(prometheus, since, time.time())
        for path in sorted((ROOT / "deploy" / "grafana").glob("*.json")):
            model = json.loads(path.read_text())
            target = folder / f"{path.stem.replace('queuectl-', 'dashboard-')}.png"
            save(draw(model, answers), target)
            print(f"{target.name}: {target.stat().st_size // 1024} kB", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
