"""Thousands of objects of one tenant on a whole real control plane, and a gang of another tenant that is submitted in the meantime.

    python -m tests.bench.bench_flood

The tenant has the role ``edit`` in one namespace, without a ResourceQuota. It creates Jobs that wait in its queue, pods outside
of any gang under labels of another tenant's Job, and ConfigMaps and Events that name objects of queuectl. It is an error if the
gangs of the other tenant do not start at once and run on, if the tenant gets more than its quota, or if queuectl writes more
than its bounds below.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from queuectl.cluster.writes import REPORTER
from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.domain.jobs import JobRecord, PodPhase
from queuectl.localcluster import NodeSpec
from queuectl.localcluster.client import Client, wait_until
from tests.bench.bench_system import config, print_table, stages, summary
from tests.bench.stage import Stage, peak_of, stage
from tests.support.people import account, binding, token_of
from tests.system.forger import event

NODES: Final = NodeSpec(blocks=2, racks_per_block=2, hosts_per_rack=4)
TENANT, OTHER = "tenant", "other"
GPUS: Final = 32
JOBS = PODS = OBJECTS = 2000
BOUND: Final = 500
"""Of the pods, those that the tenant puts on nodes; the others wait for a scheduler that does not exist."""
PER_JOB: Final = 2
"""Statuses and Events of a Job that waits, at most: one for each reason that lasts, and a reason changes once."""
SETTINGS: Final = {"QUEUECTL_EVENTS_PER_SECOND": "100"}
QUIET_SECONDS: Final = 10.0


def job(name: str, where: str, pods: int) -> Document:
    return m.job(name, where, where, PodSetManifest(pods, gpus=8))


def jobs() -> Iterator[Document]:
    """Of one to five pods: all wait, because the quota is used, and those of five could never start."""
    sizes = random.Random(1)
    for number in range(JOBS):
        yield job(f"flood-{number:04}", TENANT, sizes.randint(1, 5))


def pods(nodes: list[str]) -> Iterator[Document]:
    """Under the labels that the pods of another tenant's gang have from their job controller."""
    labels = {"batch.kubernetes.io/job-name": "mine", "training.kubeflow.org/job-name": "mine"}
    for number in range(PODS):
        spec: Document = {"containers": [{"name": "main", "image": "none"}]}
        if number < BOUND:
            spec["nodeName"] = nodes[number % len(nodes)]
        else:
            spec["schedulerName"] = "none"
        name = f"mine-{number}"
        yield _object("v1", "Pod", name, labels=labels) | {"spec": spec}


def config_maps() -> Iterator[Document]:
    for number in range(OBJECTS):
        yield _object("v1", "ConfigMap", f"queuectl-{number}") | {"data": {"queuectl": "main"}}


def events(about: Document) -> Iterator[Document]:
    """As queuectl writes them about another tenant's Job."""
    for number in range(OBJECTS):
        yield event(about, TENANT, f"{about['metadata']['name']}-{number}")


def _object(version: str, kind: str, name: str, **metadata: object) -> Document:
    meta = {"name": name, "namespace": TENANT, **metadata}
    return {"apiVersion": version, "kind": kind, "metadata": meta}


@contextmanager
def tenant(play: Stage) -> Iterator[Client]:
    """The binding of the role ``edit`` in one namespace."""
    who = account(TENANT, "tenant")
    play.cluster.client.apply(who, binding("tenant", "edit", who, TENANT))
    token = asyncio.run(token_of(play, who))
    client = Client(play.cluster.server, play.cluster.authority, token)
    try:
        yield client
    finally:
        client.close()


def starts(play: Stage, name: str) -> float:
    """Seconds from the submission of a gang of the other tenant until both of its pods run."""
    began = time.monotonic()
    play.submit(job(name, OTHER, 2))
    play.wait_for(2, PodPhase.RUNNING, f"{name}-", 300)
    return time.monotonic() - began


def create(client: Client, documents: Iterable[Document]) -> float:
    """Create objects concurrently; returns the seconds that it took."""
    began = time.monotonic()

    def one(document: Document) -> None:
        client.create(client.path_of(document).rsplit("/", 1)[0], document)

    client.each(one, list(documents))
    return time.monotonic() - began


def held(play: Stage) -> int:
    """GPUs of the pods of the tenant that run."""
    _, found = play.recorder.now()
    return 8 * sum(
        pod.namespace == TENANT and bool(pod.owner) and pod.node is not None for pod in found
    )


def states(play: Stage) -> Counter[tuple[str, str]]:
    """How many workloads of each namespace are in each state."""
    assert play.rest is not None
    return Counter((one["namespace"], one["state"]) for one in play.rest.workloads().values())


def written(play: Stage) -> Counter[str]:
    """Writes of the protocol by kind, whatever came of them."""
    counts: Counter[str] = Counter()
    for (kind, _), number in play.writes().items():
        counts[kind] += int(number)
    return counts


def said(play: Stage) -> Counter[str]:
    """The Events and statuses that queuectl has written about Jobs of the tenant, once it writes no more."""
    path = f"/apis/events.k8s.io/v1/namespaces/{TENANT}/events"
    about, before = 0, -1
    while about < JOBS or about != before:
        # Events come at a limited rate: two equal counts mean that no more are due.
        time.sleep(QUIET_SECONDS)
        listed = play.cluster.client.get(path)["items"]
        before = about
        about = sum(
            one["regarding"]["namespace"] == TENANT and one.get("reportingController") == REPORTER
            for one in listed
        )
    facts = [event.fact for event in play.recorder.recording().events]
    found = {(f.uid, f.status) for f in facts if isinstance(f, JobRecord) and f.namespace == TENANT}
    return Counter({"Event": about, "status": sum(bool(status) for _, status in found)})


def flood(play: Stage) -> None:
    play.submit(job("mine", OTHER, 2), job("holds", TENANT, GPUS // 8))
    play.wait_for(2, PodPhase.RUNNING, "mine-", 60)
    play.wait_for(GPUS // 8, PodPhase.RUNNING, "holds-", 60)
    assert play.controller is not None
    client, rest = play.cluster.client, play.rest
    assert rest is not None
    mine = client.get(f"/apis/batch/v1/namespaces/{OTHER}/jobs/mine")
    nodes = [one["metadata"]["name"] for one in client.get("/api/v1/nodes")["items"]]
    before = rest.history(OTHER, "mine")
    alone, memory, writes = starts(play, "alone"), peak_of(play.controller.pid), written(play)
    client.delete(f"/apis/batch/v1/namespaces/{OTHER}/jobs/alone", propagationPolicy="Background")
    with tenant(play) as forger:
        took = {
            "Jobs": create(forger, jobs()),
            "pods": create(forger, pods(nodes)),
            "ConfigMaps": create(forger, config_maps()),
            "Events": create(forger, events({**mine, "kind": "Job"})),
        }
    meanwhile = starts(play, "meanwhile")
    wait_until(lambda: states(play)[TENANT, "Pending"] == JOBS, f"{JOBS} Jobs wait", 600)
    assert rest.history(OTHER, "mine") == before, "the gang of the other tenant runs as before"
    assert states(play)[TENANT, "Running"] == 1, "of the tenant, one gang runs"
    assert held(play) == GPUS, "the tenant has its quota"
    more = written(play) - writes
    more.update(said(play))
    most_events = PER_JOB * JOBS + 10
    for kind, most in {"Job": 10, "Pod": 10, "Event": most_events, "status": most_events}.items():
        assert more[kind] <= most, f"{more[kind]} writes of kind {kind}, {most} allowed"
    print_table(
        ("", "without", "with the objects of the tenant"),
        ("a gang of another queue runs after, s", f"{alone:.1f}", f"{meanwhile:.1f}"),
        ("peak memory, MiB", f"{memory:.0f}", f"{peak_of(play.controller.pid):.0f}"),
        ("writes of queuectl", "", ", ".join(f"{kind} {n}" for kind, n in sorted(more.items()))),
    )
    print("    created in, s:", {what: round(seconds) for what, seconds in took.items()})
    print("    stages:", stages(play))
    print("    audit:", summary(play.audit()))


def main() -> None:
    print(
        f"{JOBS} Jobs, {PODS} pods, {OBJECTS} ConfigMaps and {OBJECTS} Events of one tenant",
        flush=True,
    )
    queues = [
        *config({}),
        *(
            m.cluster_queue(one, "gpu", {"nvidia.com/gpu": GPUS, "cpu": "1M"})
            for one in (TENANT, OTHER)
        ),
    ]
    queues += [m.local_queue(one, one, one) for one in (TENANT, OTHER)]
    with stage(NODES, queues, [TENANT, OTHER], SETTINGS) as play:
        flood(play)


if __name__ == "__main__":
    main()
