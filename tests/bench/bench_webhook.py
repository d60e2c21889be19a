"""The answers of the webhook: ``python -m tests.bench.bench_webhook``.

A control plane has the webhook instead of the MutatingAdmissionPolicies, and then the policies. Eight users create Jobs at the same time, as fast as
the API server accepts them. Printed: the time of an answer as a client of the webhook measures it, the same as the API server
measures it, and the time to create a Job. Goal: the 99th percentile of the answers is below 50 ms.
"""

from __future__ import annotations

import argparse
import base64
import re
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import httpx2
import msgspec
from rich.console import Console

from queuectl.localcluster import ClusterSpec, LocalCluster, NodeSpec
from queuectl.localcluster.client import Client
from queuectl.localcluster.progress import LineProgress
from tests.bench.bench_api import table
from tests.support.controlplane import ENGINEER
from tests.support.jobs import batch_job
from tests.system.installation import policies
from tests.versions.webhook import PATH, REPLICAS, url_of, webhook

USERS: Final = 8
JOBS: Final = 2000
_SERVER: Final = re.compile(
    r'apiserver_admission_webhook_admission_duration_seconds_bucket\{name="queuectl-jobs\.queuectl\.dev",'
    r'operation="CREATE",rejected="false",type="admit",le="([^"]+)"\} (\d+)'
)


def answers(url: str, bundle: str, count: int) -> list[float]:
    """Seconds of each answer. Each user has a connection and asks again after an answer."""
    document = batch_job("new", gpus=8, pods=8)
    request = {"uid": "1", "userInfo": {"username": "alice"}, "object": document}
    body = msgspec.json.encode({"request": request})
    trusted = ssl.create_default_context(cadata=bundle)

    def ask(_: int) -> list[float]:
        times = []
        with httpx2.Client(verify=trusted, trust_env=False) as client:
            for _ in range(count // USERS):
                began = time.perf_counter()
                client.post(f"{url}/mutate/queuectl-jobs", content=body).raise_for_status()
                times.append(time.perf_counter() - began)
        return times

    return at_once(ask)


def created(cluster: LocalCluster, prefix: str, count: int) -> list[float]:
    """Seconds for each Job."""
    path = "/apis/batch/v1/namespaces/default/jobs"

    def create(user: int) -> list[float]:
        times = []
        client: Client = cluster.client_for_user(f"user-{user}", ["engineers"])
        for number in range(count // USERS):
            document = batch_job(f"{prefix}-{user}-{number}", gpus=8, pods=8)
            began = time.perf_counter()
            client.create(path, document)
            times.append(time.perf_counter() - began)
        client.close()
        return times

    return at_once(create)


def at_once(work: Callable[[int], list[float]]) -> list[float]:
    with ThreadPoolExecutor(USERS) as pool:
        return sorted(each for times in pool.map(work, range(USERS)) for each in times)


def bound(cluster: LocalCluster) -> str:
    """The bucket with the 99th percentile of the answers, as the API server has measured them."""
    buckets = [(le, int(count)) for le, count in _SERVER.findall(cluster.client.text("/metrics"))]
    total = buckets[-1][1]
    seconds = next(float(le) for le, count in buckets if count >= 0.99 * total)
    return f"at the API server: 99 of 100 answers to {total} reviews within {1000 * seconds:.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=JOBS)
    count = parser.parse_args().jobs
    spec = ClusterSpec(nodes=(NodeSpec(),), fsync=False)
    with LocalCluster.start(spec, progress=LineProgress()) as cluster, webhook(cluster):
        cluster.client.apply(*ENGINEER)
        encoded = cluster.client.get(PATH)["webhooks"][0]["clientConfig"]["caBundle"]
        bundle = base64.b64decode(encoded).decode()
        found = [("answer, at a client", answers(url_of(cluster, REPLICAS[0]), bundle, count))]
        found.append(("creation of a Job with the webhook", created(cluster, "webhook", count)))
        seen = bound(cluster)
        cluster.client.delete(PATH)
        with policies(cluster):
            found.append(("creation of a Job with policies", created(cluster, "policies", count)))
    console = Console(width=120)
    console.print(table(found, f"{USERS} users at the same time"))
    console.print(seen)


if __name__ == "__main__":
    main()
