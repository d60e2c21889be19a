"""The cluster that the pictures of the documentation show: three teams run gangs on 512 simulated GPUs.

A few gangs run, or are pending, for the whole run. Others are submitted at random, by several users: gangs of all sizes start,
borrow, are preempted, are idle, hang, fail, and cannot be measured for a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Final
from urllib.parse import urlsplit

from typer.testing import CliRunner

from queuectl.cli.main import app
from queuectl.demo import scenario as m
from queuectl.demo.scenario import FAIL_SECONDS, Document, PodSetManifest, with_idle_reclaim
from queuectl.domain.quantity import GPU
from queuectl.localcluster import NodeSpec
from queuectl.localcluster.client import Client, wait_until
from queuectl.localcluster.exporter import PROFILE, Exporters
from queuectl.localcluster.layout import free_ports
from queuectl.localcluster.progress import LineProgress
from queuectl.localcluster.prometheus import Prometheus, exporters_job
from queuectl.objects.keys import EXPECTED_DURATION, MAX_EXECUTION, PREFIX
from tests.support.people import group_binding
from tests.system.installation import BLOCK, RACK, Installation, installed
from tests.system.picture_plans import budgets, reservations

HOUR: Final = 3600.0
NODES: Final = NodeSpec(blocks=2, racks_per_block=4, hosts_per_rack=8)
SCRAPE: Final = 1.0
QUOTAS: Final = {"language": 224, "vision": 144, "speech": 80}
LENT: Final = 64  # the quota of a queue of another cohort, which has no gangs
BACKFILLED: Final = "vision"  # its gangs have known ends
CORES: Final = 12  # quota of cores for each GPU of quota
SETTINGS: Final = {
    "QUEUECTL_UTILIZATION__EVALUATION_SECONDS": "2",
    "QUEUECTL_UTILIZATION__SCRAPE_SECONDS": str(SCRAPE),
    "QUEUECTL_UTILIZATION__TIMEOUT_SECONDS": "5",
    "QUEUECTL_REASON_DELAY_SECONDS": "2",
    "QUEUECTL_ACCOUNT_SECONDS": "4",
}
START_SECONDS: Final = "kwok.queuectl.dev/start-seconds"
USERS: Final = {
    "language": ("chen.wei", "ana.silva", "jonas.weber"),
    "vision": ("priya.nair", "tom.baker"),
    "speech": ("lea.martin", "omar.haddad"),
}
NAMES: Final = {
    "language": ("llama-8b-sft", "reward-model", "dpo-7b", "moe-routing", "long-context", "tokenizer-ablation"),
    "vision": ("dino-finetune", "sdxl-lora", "detr-coco", "depth-estimation", "segmentation"),
    "speech": ("whisper-finetune", "tts-voice", "diarization", "asr-eval"),
}  # fmt: skip
PROFILES: Final = (
    *("busy=0.9", "busy=0.85", "busy=0.7", "busy=0.75", "busy=0.6", "busy=0.15"),
    *("busy=0.9 for 15; idle", "idle", "stuck"),
)


@dataclass(frozen=True)
class LongRunningGang:
    """A gang of the whole run. It runs until the end of the run, unless it is preempted or never starts.

    Attributes:
        limit: hours after which the controller would end it.
        expected: hours for which its user expects it to run.
    """

    team: str
    user: str
    name: str
    pods: PodSetManifest
    priority: str = "batch"
    queue: str = "training"
    limit: float | None = None
    expected: float | None = None

    def document(self) -> Document:
        document = m.job(self.name, self.team, self.queue, self.pods, priority_class=self.priority)
        hours = {MAX_EXECUTION: self.limit, EXPECTED_DURATION: self.expected}
        return _with_labels(document, {key: h * HOUR for key, h in hours.items() if h is not None})


def _busy(share: float) -> dict[str, str]:
    return {PROFILE: f"busy={share:g}", START_SECONDS: "3", m.TERMINATE_SECONDS: "3"}


RUNNING: Final = (
    LongRunningGang("language", "chen.wei", "llama-70b-pretrain", PodSetManifest(16, 8, "64", preferred=BLOCK, annotations=_busy(0.86)), "urgent", limit=6),
    LongRunningGang("vision", "priya.nair", "dino-pretrain", PodSetManifest(8, 8, "64", preferred=RACK, annotations=_busy(0.72)), "urgent", limit=2.5),
    LongRunningGang("speech", "lea.martin", "whisper-large", PodSetManifest(4, 8, "64", preferred=RACK, annotations=_busy(0.78)), "urgent", limit=1.5),
    LongRunningGang("language", "chen.wei", "notebook-chen", PodSetManifest(1, 4, "16", annotations={PROFILE: "idle"}), queue="experiments"),
    LongRunningGang("vision", "priya.nair", "clip-retrain", PodSetManifest(4, 8, "64", preferred=RACK, annotations=_busy(0.81)), "urgent", expected=1.25),
    LongRunningGang("vision", "tom.baker", "sam-finetune", PodSetManifest(2, 8, "64", preferred=RACK, annotations=_busy(0.69)), "urgent", limit=0.75),
    LongRunningGang("speech", "omar.haddad", "conformer-large", PodSetManifest(2, 8, "64", preferred=RACK, annotations=_busy(0.83)), "urgent", expected=0.5),
)  # fmt: skip
PENDING: Final = (
    LongRunningGang("vision", "tom.baker", "video-diffusion", PodSetManifest(20, 8, "64", preferred=BLOCK, annotations=_busy(0.9)), "urgent", limit=1.5),
    LongRunningGang("language", "chen.wei", "mixtral-pretrain", PodSetManifest(10, 8, "64", required=RACK, annotations=_busy(0.9))),
    LongRunningGang("speech", "lea.martin", "seamless-pretrain", PodSetManifest(16, 8, "64", preferred=BLOCK, annotations=_busy(0.9))),
    LongRunningGang("language", "chen.wei", "long-context-32k", PodSetManifest(8, 8, "96", required=RACK, annotations=_busy(0.9)), limit=3),
)  # fmt: skip
HELD: Final = LongRunningGang("language", "chen.wei", "reward-model-v2", PodSetManifest(4, 8, "64", annotations=_busy(0.8)))  # fmt: skip


@contextmanager
def stage() -> Iterator[tuple[Installation, Prometheus, Exporters]]:
    """A control plane with the teams' queues, GPU exporters, and one Prometheus that scrapes them and queuectl."""
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
            with installed(NODES, SETTINGS | measured, operators=()) as built:
                assert urlsplit(built.controller.metrics).port == port
                for node, gpus in built.cluster.nodes.gpus().items():
                    exporters.add_node(node, gpus)
                built.cluster.client.apply(*m.namespaces(QUOTAS))
                built.rest.apply(configuration())
                now = datetime.now(UTC)
                built.rest.apply([*budgets(now), *reservations(now)])
                with exporters.following(built.cluster.client):
                    yield built, prometheus, exporters


def configuration() -> Iterator[Document]:
    """Three teams in one cohort, which borrows from another cohort of the same root. The queue of one plans starts."""
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
    lender = m.cluster_queue("serving", "h100", {GPU: LENT, "cpu": CORES * LENT})
    yield lender | {"spec": lender["spec"] | {"cohortName": "production"}}
    for team, gpus in QUOTAS.items():
        queue = with_idle_reclaim(m.cluster_queue(team, "h100", {GPU: gpus, "cpu": CORES * gpus}))
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
        if team == BACKFILLED:
            queue["spec"]["queueingStrategy"] = "Backfill"
            queue["spec"]["policy"] |= {"plannedStarts": 3}
        yield queue
        yield m.local_queue(team, "training", team)
        yield m.local_queue(team, "experiments", team)
    yield {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "metadata": {"name": "default"},
        "admissionFairSharing": {"usageHalfLifeTime": "1h", "usageSamplingInterval": "5s"},
    }


class Load:
    """Submits the gangs in a thread, as users of the teams."""

    def __init__(
        self, built: Installation, exporters: Exporters, minutes: float, random: Random
    ) -> None:
        self._built = built
        self._exporters = exporters
        self._seconds = 60 * minutes
        self._random = random
        self._stopped = threading.Event()
        self._clients: dict[str, Client] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Gangs are submitted until the block ends."""
        with ExitStack() as stack:
            for team, users in USERS.items():
                self._built.cluster.client.apply(group_binding(team, "edit", team, team))
                for user in users:
                    self._clients[user] = self._built.cluster.client_for_user(user, [team])
                    stack.callback(self._clients[user].close)
            self._hold(HELD)
            thread = threading.Thread(target=self._submit)
            thread.start()
            stack.callback(thread.join)
            stack.callback(self._stopped.set)
            yield

    def _submit(self) -> None:
        """The gangs of the whole run, then gangs at random. In the middle of the run the exporter of one node fails for a minute."""
        began = time.time()
        number, dead = 0, "b0-r1-h3"
        for gang in RUNNING:
            self._create(gang.user, gang.document())
        while not self._stopped.wait(self._random.expovariate(1 / 1.5)):
            passed = (time.time() - began) / self._seconds
            (self._exporters.kill if 0.45 < passed < 0.6 else self._exporters.revive)(dead)
            number += 1
            if number <= len(PENDING):
                self._create(PENDING[number - 1].user, PENDING[number - 1].document())
            self._create(*_gang(self._random, number))

    def _hold(self, gang: LongRunningGang) -> None:
        self._create(gang.user, gang.document())
        ref, server = f"{gang.team}/{gang.name}", self._built.controller.api
        command = [
            "hold",
            ref,
            "--by",
            gang.user,
            "--reason",
            "the labels are not ready",
            "--server",
            server,
        ]
        wait_until(lambda: CliRunner().invoke(app, command).exit_code == 0, f"hold of {ref}", 60)

    def _create(self, user: str, document: Document) -> None:
        path = f"/apis/batch/v1/namespaces/{document['metadata']['namespace']}/jobs"
        self._clients[user].create(path, document)


def _gang(random: Random, number: int) -> tuple[str, Document]:
    """The user and the job."""
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
    cores = min(
        96, gpus * random.choice([4, 8, 12, 24])
    )  # of a node's 96: some leave GPUs without cores
    shape = PodSetManifest(pods, gpus, str(cores), preferred=level, annotations=played)
    seconds = round(random.uniform(12, 60), 1)
    document = m.job(
        f"{random.choice(NAMES[team])}-{number}",
        team,
        random.choice(["training", "training", "experiments"]),
        shape,
        seconds=seconds,
        priority_class="urgent" if urgent else "batch",
    )
    times = {}
    if team == BACKFILLED or random.random() < 0.5:
        times[EXPECTED_DURATION] = seconds * random.uniform(0.9, 1.5)
    if random.random() < 0.04:
        times[MAX_EXECUTION] = 10.0
    return random.choice(USERS[team]), _with_labels(document, times)


def _with_labels(document: Document, seconds: Mapping[str, float]) -> Document:
    """The job with times as its labels."""
    labels = {PREFIX + key: str(round(value)) for key, value in seconds.items()}
    document["metadata"]["labels"] |= labels
    return document
