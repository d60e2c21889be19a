"""Plugins of the API server that the Configuration declares change the pods of a template as they do in the cluster."""

from __future__ import annotations

from typing import Any

import pytest

from queuectl.objects.documents import as_document
from queuectl.offline.inputs import read_snapshot
from tests.planner.documents import TOPOLOGY, Doc, cluster_queue, flavor, nodes, planned, workload
from tests.support.jobs import batch_job

TOLERATION, SELECTOR = "ExtendedResourceToleration", "PodNodeSelector"
OPENSHIFT = "scheduling.openshift.io/OriginPodNodeEnvironment"
OWN = "scheduler.alpha.kubernetes.io/node-selector"
THEIRS = "openshift.io/node-selector"


def configuration(*plugins: str) -> Doc:
    return {
        "apiVersion": "queuectl.dev/v1",
        "kind": "Configuration",
        "metadata": {"name": "default"},
        "queuectl": {"admissionPlugins": list(plugins)},
    }


def namespace(**annotations: str) -> Doc:
    meta = {"name": "default", "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": meta}


def fleet(taint: str = "") -> list[Doc]:
    """Two nodes; ``pool: b`` is the second."""
    found = nodes("r", 1, pool="a") + nodes("s", 1, pool="b")
    for node in found:
        node["spec"] = {"taints": [{"key": taint, "effect": "NoSchedule"}] if taint else []}
    return [*cluster_queue("main", 16), TOPOLOGY, flavor(topology=True), *found]


@pytest.mark.parametrize(
    ("plugins", "taint", "starts"),
    [
        ([TOLERATION], "nvidia.com/gpu", True),
        ([], "nvidia.com/gpu", False),
        ([SELECTOR], "nvidia.com/gpu", False),
        ([TOLERATION], "example.com/other", False),
    ],
)
def test_pods_tolerate_a_taint_with_the_name_of_a_resource_that_they_request(
    plugins: list[str], taint: str, starts: bool
) -> None:
    done = planned(fleet(taint), configuration(*plugins), workload("train", "main", 1, 8))
    assert done.started == (["train"] if starts else [])


@pytest.mark.parametrize(
    ("plugins", "annotations", "node"),
    [
        ([SELECTOR], {OWN: "pool=b"}, "s0"),
        ([OPENSHIFT], {THEIRS: "pool=b"}, "s0"),
        ([SELECTOR, OPENSHIFT], {OWN: " pool = b ", THEIRS: ""}, "s0"),
        ([OPENSHIFT], {OWN: "pool=b"}, "r0"),
        ([], {OWN: "pool=b", THEIRS: "pool=b"}, "r0"),
        ([SELECTOR], {}, "r0"),
        ([SELECTOR], {OWN: "pool=c"}, None),
    ],
)
def test_pods_use_the_nodes_that_their_namespace_selects(
    plugins: list[str], annotations: dict[str, str], node: str | None
) -> None:
    parts: list[Any] = [*fleet(), configuration(*plugins), namespace(**annotations)]
    done = planned(parts, workload("train", "main", 1, 8))
    if node is None:
        assert done.waiting == {"train": "ShapeNeverFits"}
    else:
        assert list(done.podset("train")["nodes"]) == [node]


def test_a_template_that_selects_other_nodes_than_its_namespace_is_not_planned() -> None:
    job = batch_job("train")
    job["spec"]["template"]["spec"]["nodeSelector"] = {"pool": "a"}
    parts = [configuration(SELECTOR), namespace(**{OWN: "pool=b"}), job]
    (pending,) = read_snapshot([as_document(one) for one in parts]).snapshot.pending
    assert pending.blocked is not None
    assert "nodeSelector[pool]: 'a' conflicts with 'b' of namespace default" in (
        pending.blocked.message
    )
