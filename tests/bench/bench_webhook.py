"""The answers of the webhook: ``python -m tests.bench.bench_webhook [--peer FOLDER]``.

Eight users at the same time send reviews of new Jobs to the webhook, each one after the other. Then they create Jobs as dry runs, so that no
controller works in the meantime: without admission, with the webhook and the validating policies, and with all policies. With ``--peer``, the
same against the webhooks of Kueue, on a control plane of its own (tests.bench.kueue.peer describes the files of the folder).
Printed: the time of an answer at a client, the same at the API server, and the time of a dry run. Goal: the 99th percentile of the answers is
below 50 ms.
"""

from __future__ import annotations

import argparse
import base64
import re
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec
from rich.console import Console

from queuectl.localcluster import ClusterSpec, LocalCluster, NodeSpec
from queuectl.localcluster.client import Client
from queuectl.localcluster.progress import LineProgress
from queuectl.objects import keys
from tests.bench.bench_api import quantiles, table
from tests.bench.kueue.peer import Kueue, jobs_alone
from tests.support.controlplane import ENGINEER
from tests.support.jobs import batch_job
from tests.system.installation import policies
from tests.versions.webhook import webhook

USERS: Final = 8
COUNT: Final = 4000
WARM_UP: Final = 800
"""Dry runs before the measurement: an API server is slower at first."""
NAMESPACE: Final = "default"
CONFIGURATIONS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
OURS, THEIRS = "queuectl-jobs-0.queuectl.dev", "mjob.kb.io"
_MEASURED: Final = (
    r'apiserver_admission_webhook_admission_duration_seconds_(\w+)\{name="%s",operation="CREATE",'
    r'rejected="false",type="admit"(?:,le="([^"]+)")?\} (\S+)'
)

Rows = dict[str, list[float]]
"""Seconds of each answer by the row of the table."""


def new_job(webhook: str) -> dict[str, Any]:
    """A gang of 8 pods of 8 GPUs, in a queue of queuectl or of Kueue."""
    document = batch_job("new", gpus=8, pods=8, namespace=NAMESPACE, queue=None)
    prefix = keys.KUEUE_PREFIX if webhook == THEIRS else keys.PREFIX
    document["metadata"]["labels"] = {prefix + keys.QUEUE_NAME: "main"}
    return document


def review(document: dict[str, Any]) -> bytes:
    """The AdmissionReview that an API server sends for a new Job."""
    kind = {"group": "batch", "version": "v1", "kind": "Job"}
    resource = {"group": "batch", "version": "v1", "resource": "jobs"}
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": kind,
        "requestKind": kind,
        "resource": resource,
        "requestResource": resource,
        "name": document["metadata"]["name"],
        "namespace": NAMESPACE,
        "operation": "CREATE",
        "userInfo": {"username": "alice", "groups": ["engineers", "system:authenticated"]},
        "object": document,
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    made = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    return msgspec.json.encode(made)


def answers(cluster: LocalCluster, webhook: str, count: int) -> list[float]:
    """Seconds of each answer. Each user has a connection and asks again after an answer."""
    [client] = [
        one["clientConfig"]
        for configuration in cluster.client.get(CONFIGURATIONS)["items"]
        for one in configuration["webhooks"]
        if one["name"] == webhook
    ]
    trusted = ssl.create_default_context(cadata=base64.b64decode(client["caBundle"]).decode())
    body = review(new_job(webhook))
    headers = {"content-type": "application/json"}

    def ask(_: int) -> list[float]:
        times = []
        with httpx2.Client(verify=trusted, trust_env=False, headers=headers) as http:
            for _ in range(count // USERS):
                began = time.perf_counter()
                answer = http.post(client["url"], content=body).raise_for_status()
                times.append(time.perf_counter() - began)
                assert answer.json()["response"]["patch"]
        return times

    return at_once(ask)


def dry_runs(
    cluster: LocalCluster, webhook: str, count: int, *, mutated: bool = True
) -> list[float]:
    """Seconds for each Job."""
    path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"

    def create(user: int) -> list[float]:
        times = []
        client: Client = cluster.client_for_user(f"user-{user}", ["engineers"])
        for _ in range(count // USERS):
            document = new_job(webhook)
            began = time.perf_counter()
            stored = client.create(path, document, dryRun="All")
            times.append(time.perf_counter() - began)
            assert stored["spec"]["suspend"] is mutated
        client.close()
        return times

    return at_once(create)


def at_once(work: Callable[[int], list[float]]) -> list[float]:
    with ThreadPoolExecutor(USERS) as pool:
        return sorted(each for times in pool.map(work, range(USERS)) for each in times)


def at_the_server(cluster: LocalCluster, webhook: str) -> str:
    """The mean, and the bucket with the 99th percentile, of the answers as the API server has measured them."""
    found = re.findall(_MEASURED % re.escape(webhook), cluster.client.text("/metrics"))
    buckets = {float(le): int(value) for part, le, value in found if part == "bucket"}
    total, seconds = (float(value) for part, _, value in sorted(found) if part in ("count", "sum"))
    bound = min(le for le, count in buckets.items() if count >= 0.99 * total)
    return (
        f"{webhook} at the API server: {total:.0f} answers, mean {1000 * seconds / total:.1f} ms, "
        f"99 of 100 within {1000 * bound:.0f} ms"
    )


@contextmanager
def control_plane() -> Iterator[LocalCluster]:
    spec = ClusterSpec(nodes=(NodeSpec(),), fsync=False)
    with LocalCluster.start(spec, progress=LineProgress()) as cluster:
        cluster.client.apply(*ENGINEER)
        dry_runs(cluster, OURS, WARM_UP, mutated=False)
        yield cluster


def of_queuectl(count: int) -> tuple[Rows, str]:
    found: Rows = {}
    with control_plane() as cluster:
        found["dry run without admission"] = dry_runs(cluster, OURS, count, mutated=False)
        with webhook(cluster):
            found["answer of queuectl"] = answers(cluster, OURS, count)
            found["dry run with the webhook"] = dry_runs(cluster, OURS, count)
            measured = at_the_server(cluster, OURS)
        cluster.client.delete(f"{CONFIGURATIONS}/queuectl")
        with policies(cluster):
            found["dry run with the policies"] = dry_runs(cluster, OURS, count)
    return found, measured


def of_kueue(folder: Path, count: int) -> tuple[Rows, str]:
    found: Rows = {}
    with control_plane() as cluster:
        kueue = Kueue.start(cluster, folder, jobs_alone())
        try:
            found["answer of Kueue"] = answers(cluster, THEIRS, count)
            found["dry run with the webhooks of Kueue"] = dry_runs(cluster, THEIRS, count)
            return found, at_the_server(cluster, THEIRS)
        finally:
            kueue.stop()


def ratio(found: Rows, ours: str, theirs: str) -> str:
    pairs = zip(quantiles(found[ours]), quantiles(found[theirs]), strict=True)
    median, p99, _ = (mine / other for mine, other in pairs)
    return f"{ours} / {theirs}: p50 {median:.2f}, p99 {p99:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="reviews, and Jobs")
    parser.add_argument("--peer", type=Path, help="folder with a build of Kueue")
    options = parser.parse_args()
    found, measured = of_queuectl(options.count)
    lines = [measured]
    if options.peer:
        more, measured = of_kueue(options.peer, options.count)
        found |= more
        lines.append(measured)
        lines.append(ratio(found, "answer of queuectl", "answer of Kueue"))
        lines.append(ratio(found, "dry run with the webhook", "dry run with the webhooks of Kueue"))
    console = Console(width=120)
    console.print(table(found.items(), f"{USERS} users at the same time"))
    for line in lines:
        console.print(line)
    p99 = quantiles(found["answer of queuectl"])[1]
    console.print(f"goal: p99 of the answers {p99:.1f} of 50 ms")


if __name__ == "__main__":
    main()
