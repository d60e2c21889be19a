"""The CRDs of the chart survive `helm uninstall` and are changed by `helm upgrade`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from queuectl.objects.configuration.config_kinds import CUSTOM_KINDS
from tests.operations.custom import CustomCluster, bare_cluster
from tests.support.chart import CHART, documents, helm_program
from tests.unit.test_config_fields import document

pytestmark = pytest.mark.operations

VALUES = {"image": {"repository": "queuectl"}}
OWNED = {**VALUES, "configuration": {"owner": "kubernetes"}}


@pytest.fixture(scope="module")
def api() -> Iterator[CustomCluster]:
    with bare_cluster() as cluster:
        yield CustomCluster(cluster)


def crds(values: Mapping[str, object]) -> list[str]:
    found = (one for one in documents(values) if one["kind"] == "CustomResourceDefinition")
    return sorted(one["metadata"]["name"] for one in found)


def test_only_an_owner_in_kubernetes_renders_them() -> None:
    assert crds(OWNED) == sorted(kind.resource for kind in CUSTOM_KINDS)
    for owner in ("database", "kueue"):
        assert crds({**VALUES, "configuration": {"owner": owner}}) == []
    assert crds(VALUES) == []


def test_an_upgrade_changes_them_and_an_uninstall_keeps_them_with_their_objects(
    api: CustomCluster, tmp_path: Path
) -> None:
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)

    def helm(*arguments: str | Path) -> None:
        environment = os.environ | {"KUBECONFIG": str(api.cluster.kubeconfig)}
        command = [helm_program(), *arguments, "--namespace", "queuectl-system"]
        subprocess.run(command, env=environment, check=True, capture_output=True)

    options = ("--set", "image.repository=queuectl,configuration.owner=kubernetes", "--no-hooks")
    helm("install", "queuectl", chart, "--create-namespace", *options)
    api.done("wait", "--for=condition=Established", "crd", "topologies.queuectl.dev")
    api.apply(document("Topology"), manager="git")
    file = chart / "definitions" / "topologies.yaml"
    file.write_text(file.read_text().replace("maxItems: 16", "maxItems: 15"))
    helm("upgrade", "queuectl", chart, *options)
    changed = api.done("get", "crd", "topologies.queuectl.dev", "-o", "yaml")
    assert "maxItems: 15" in changed
    helm("uninstall", "queuectl", "--no-hooks")
    assert api.read("Topology", "x")["spec"] == document("Topology")["spec"]
    helm("install", "queuectl", CHART, *options)
    assert api.read("Topology", "x")["spec"] == document("Topology")["spec"]
