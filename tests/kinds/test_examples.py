"""The examples of Kueue run unchanged, in LocalQueues with its names: tests/fixtures/kueue has the same fields in other words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
import yaml

from queuectl.demo import scenario as m
from queuectl.demo.scenario import Document
from queuectl.domain.jobs import PodRecord
from tests.kinds.entry import racks
from tests.support.sparkapplications import driver_account
from tests.system.actions import apply
from tests.system.installation import BLOCK, RACK, Installation, Workspace

pytestmark = [pytest.mark.system, pytest.mark.kinds, pytest.mark.timeout(1500)]

FOLDER: Final = Path(__file__).parents[1] / "fixtures" / "kueue"
_KUEUES_LABELS: Final = {BLOCK: "cloud.provider.com/topology-block", RACK: "cloud.provider.com/topology-rack"}  # fmt: skip

EXAMPLES: Final = {
    # file: kind, gangs, pods
    "job": ("Job", 1, 3),
    "job-partial": ("Job", 1, 9),  # of 20, for which the quota is too small
    "job-topology": ("Job", 2, 50),
    "jobset": ("JobSet", 1, 2),
    "jobset-required": ("JobSet", 1, 4),
    "jobset-sliced": ("JobSet", 1, 8),
    "jobset-combined": ("JobSet", 1, 8),
    "pytorchjob": ("PyTorchJob", 1, 2),
    "tfjob": ("TFJob", 1, 3),
    "xgboostjob": ("XGBoostJob", 1, 3),
    "paddlejob": ("PaddleJob", 1, 2),
    "jaxjob": ("JAXJob", 1, 2),
    "mpijob": ("MPIJob", 1, 3),
    "raycluster": ("RayCluster", 1, 2),
    "rayjob": ("RayJob", 1, 3),
    "sparkapplication": ("SparkApplication", 1, 3),
    "pod": ("Pod", 1, 1),
    "podgroup": ("PodGroup", 1, 2),
    "deployment": ("Deployment", 3, 3),
    "statefulset": ("StatefulSet", 1, 3),
    "leaderworkerset": ("LeaderWorkerSet", 2, 6),
    "leaderworkerset-topology": ("LeaderWorkerSet", 2, 6),
}


@contextmanager
def _kueues_queues(installation: Installation) -> Iterator[Workspace]:
    """LocalQueues with the quotas of the pages on which Kueue describes its examples, and the labels of their topology on the nodes."""
    with installation.workspace(0) as workspace:
        name = workspace.namespace
        quotas: dict[str, dict[str, int | str]] = {
            "user-queue": {"cpu": 9, "memory": "36Gi"},
            "tas-user-queue": {"cpu": 100, "memory": "100Gi", "nvidia.com/gpu": 8},
        }
        documents = [
            m.topology("kueue", *_KUEUES_LABELS.values()),
            m.flavor("kueue", topology="kueue"),
        ]
        for local, quota in quotas.items():
            queue = f"{name}-{local}"
            documents += [m.cluster_queue(queue, "kueue", quota), m.local_queue(name, local, queue)]
        apply(workspace, *documents)
        yield workspace


@pytest.fixture(scope="module", autouse=True)
def _labels_of_nodes(installation: Installation) -> None:
    client = installation.cluster.client
    for node in client.get("/api/v1/nodes")["items"]:
        meta = node["metadata"]
        labels = {kueues: meta["labels"][own] for own, kueues in _KUEUES_LABELS.items()}
        client.patch(f"/api/v1/nodes/{meta['name']}", {"metadata": {"labels": labels}})


def _created(workspace: Workspace, document: Document) -> None:
    document["metadata"]["namespace"] = workspace.namespace
    generated = "generateName" in document["metadata"]
    if generated:
        document["metadata"]["name"] = "-"
    collection = workspace.client.path_of(document).rpartition("/")[0]
    if generated:
        del document["metadata"]["name"]
    made = workspace.client.create(collection, document)
    workspace.made.append(f"{collection}/{made['metadata']['name']}")


def _pods(workspace: Workspace) -> list[PodRecord]:
    return [one for one in workspace.recorder.now()[1] if one.namespace == workspace.namespace]


@pytest.mark.parametrize(
    ("kind", "name"), [pytest.param(kind, name, id=name) for name, (kind, *_) in EXAMPLES.items()]
)
def test_an_example_of_kueue_runs_unchanged(
    installation: Installation, kind: str, name: str
) -> None:
    _, gangs, pods = EXAMPLES[name]
    documents = list(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()))
    assert {one["kind"] for one in documents} == {"Pod" if kind == "PodGroup" else kind}
    with _kueues_queues(installation) as workspace:
        # Kueue's page has its user create it.
        workspace.client.apply(*driver_account("spark", workspace.namespace))
        for document in documents:
            _created(workspace, document)

        def run() -> bool:
            states = [one["state"] for one in workspace.workloads().values()]
            bound = [one for one in _pods(workspace) if one.ready and one.node is not None]
            return states == ["Running"] * gangs and len(bound) == pods

        workspace.until(run, f"{gangs} gangs with {pods} pods run")
        if "required" in name:
            assert len({*racks(_pods(workspace))}) == 1


def test_each_file_is_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == {*EXAMPLES}
