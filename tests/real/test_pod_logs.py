"""Logs of real containers on pages of the dashboard, read with the right of the opt-in and checked by the real API server.

tests/cluster/test_pod_logs.py has more cases on a double.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from queuectl.cluster.access import KubernetesAccess
from queuectl.cluster.pod_logs import KubernetesPodLogs
from queuectl.demo.scenario import Document, PodSetManifest
from queuectl.web.log_streams import ENDED, PodLogs
from tests.api.conftest import commit
from tests.api.signed import bearer
from tests.doubles.store import MemoryStore
from tests.real import work
from tests.real.cluster import RealInstallation
from tests.support.people import account, binding, token_of
from tests.web.pod_log_pages import LogEvents, WatchedPods, limited, pod_of, served, workload

pytestmark = pytest.mark.real
STREAM = {"Accept": "text/event-stream"}
SECONDS = 120.0


@contextmanager
def reading(http: httpx2.Client, address: str, **query: str) -> Iterator[Iterator[dict[str, Any]]]:
    """The contents of the events of a log."""
    with http.stream("POST", address, params=query, headers=STREAM, timeout=SECONDS) as answer:
        assert answer.status_code == 200, answer.read()
        lines = answer.iter_lines()
        yield (json.loads(line[6:]) for line in lines if line.startswith("data: "))


def text(events: Iterator[dict[str, Any]]) -> tuple[str, str]:
    """The text until the end, and why it ends there."""
    found = ""
    for content in events:
        if "reason" in content:
            return found, content["reason"]
        found += content["text"]
    return found, ""


def address_of(job: Document, pod: Document) -> str:
    return f"/ui/workloads/{job['metadata']['uid']}/pods/{pod['metadata']['uid']}/logs"


def test_the_log_of_a_real_container_is_followed_on_its_page(
    installation: RealInstallation,
) -> None:
    script = "echo first; sleep 15; printf 'last\\033[2J'"
    with (
        installation.workspace(8) as workspace,
        httpx2.Client(base_url=installation.controller.api, timeout=SECONDS) as http,
    ):
        job = work.run(workspace, "train", PodSetManifest(1, gpus=1), script)
        work.until_written(workspace, "train", 1, "first")
        [pod] = work.pods(workspace, "train")
        address = address_of(job, pod)
        assert pod["spec"]["containers"][0]["name"] in http.get(address).text
        began = time.monotonic()
        with reading(http, address, follow="on") as events:
            assert next(events) == {"text": "first\n"}
            print(f"time to the first line: {time.monotonic() - began:.3f} s")
            assert text(events) == ("last\\u001b[2J", ENDED)
        with reading(http, address) as events:
            assert text(events) == ("first\nlast\\u001b[2J", ENDED)


def test_logs_of_a_silent_and_of_a_restarted_container(installation: RealInstallation) -> None:
    with (
        installation.workspace(8) as workspace,
        httpx2.Client(base_url=installation.controller.api, timeout=SECONDS) as http,
    ):
        silent = work.run(workspace, "silent", PodSetManifest(1, gpus=1), "sleep 20; echo late")
        workspace.until_state("silent", "Running")
        [pod] = work.pods(workspace, "silent")
        with reading(http, address_of(silent, pod), follow="on") as events:
            assert text(events) == ("late\n", ENDED)
        again = {"restartPolicy": "OnFailure"}
        restarted = work.run(
            workspace, "again", PodSetManifest(1, gpus=1), "echo run; sleep 2; exit 1", spec=again
        )
        workspace.until(
            lambda: any(
                status.get("lastState", {}).get("terminated")
                for pod in work.pods(workspace, "again")
                for status in pod["status"].get("containerStatuses", ())
            ),
            "the container restarts",
        )
        [pod] = work.pods(workspace, "again")
        with reading(http, address_of(restarted, pod), previous="on") as events:
            assert text(events) == ("run\n", ENDED)


async def test_the_api_server_decides_about_each_viewer_and_ends_a_stream(
    installation: RealInstallation,
) -> None:
    kubeconfig = Path(installation.controller.environment["QUEUECTL_KUBECONFIG"])
    with installation.workspace(8) as workspace:
        namespace = workspace.namespace
        script = "while true; do echo tick; sleep 0.5; done"
        work.run(workspace, "train", PodSetManifest(1, gpus=1), script)
        work.until_written(workspace, "train", 1, "tick")
        [pod] = work.pods(workspace, "train")
        viewer, other = account(namespace, "viewer"), account(namespace, "other")
        bound = binding("viewer", "view", viewer, namespace)
        role = binding("other", "queuectl-viewer", other, namespace)
        installation.cluster.client.apply(viewer, other, bound, role)
        store, access = MemoryStore(), await KubernetesAccess.connect(kubeconfig)
        await commit(store, workload("train", namespace))
        metadata = pod["metadata"]
        watched = WatchedPods({"uid-job-train": (pod_of(metadata["uid"], metadata["name"], namespace),)})  # fmt: skip
        source = await KubernetesPodLogs.connect(kubeconfig, 4)
        pod_logs = PodLogs(source, limited(trust_seconds=1.0))
        path = f"/ui/workloads/uid-job-train/pods/{metadata['uid']}/logs"
        try:
            async with asyncio.timeout(SECONDS), served(store, access, watched, pod_logs) as client:
                refused = {**bearer(await token_of(installation, other)), **STREAM}
                answer = await client.post(path, headers=refused)
                assert answer.status_code == 403
                assert "may not get pods/log" in answer.json()["detail"]
                allowed = {**bearer(await token_of(installation, viewer)), **STREAM}
                query = {"follow": "on"}
                async with client.stream("POST", path, params=query, headers=allowed) as stream:
                    events = LogEvents(stream)
                    assert "tick" in await events.text()
                    installation.cluster.client.delete(
                        f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings/viewer"
                    )
                    began = time.monotonic()
                    _, reason = await events.rest()
                    print(f"a withdrawn right ended the stream in {time.monotonic() - began:.0f} s")
                assert "You may no longer read this log" in reason
        finally:
            await source.close()
            await access.close()
