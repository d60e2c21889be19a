"""The commands of the page on dynamic resource allocation work as written, on nodes with devices."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queuectl.localcluster.client import wait_until
from tests.system.claims import SinglePods
from tests.system.demo_cluster import admin_shell
from tests.system.device_cluster import device_installation
from tests.system.installation import SECONDS, Installation
from tests.system.transcript import Page

pytestmark = [pytest.mark.system, pytest.mark.gpus]
__all__ = ["device_installation"]


@pytest.fixture
def page(device_installation: Installation) -> Iterator[Page]:
    client = device_installation.cluster.client
    with admin_shell(device_installation) as shell:
        yield Page("dynamic-resources.md", shell)
        for name in ("train", "plain"):
            path = f"/apis/batch/v1/namespaces/default/jobs/{name}"
            client.delete(path, missing_ok=True, propagationPolicy="Background")
        wait_until(lambda: not SinglePods(client, "default").claims(), "no claim is left", SECONDS)


def runs(installation: Installation, name: str) -> None:
    """Workloads of other tests can have the same name in their namespaces."""

    def state() -> str:
        found = installation.rest.workloads().values()
        own = (one for one in found if (one["namespace"], one["name"]) == ("default", name))
        return next((one["state"] for one in own), "")

    wait_until(lambda: state() == "Running", f"{name} runs", SECONDS)


def test_the_page_on_dynamic_resource_allocation(
    device_installation: Installation, page: Page
) -> None:
    page.type("kubectl get resourceslices")
    page.type("kubectl get deviceclasses")
    page.write("queue.yaml")
    page.type("queuectl apply")
    page.write("train.yaml")
    page.type("kubectl apply")
    runs(device_installation, "train")
    page.type("kubectl get resourceclaims")
    page.write("plain.yaml")
    page.type("kubectl apply")
    runs(device_installation, "plain")
    page.type("queuectl get workloads")
    page.end()
