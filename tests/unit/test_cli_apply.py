"""``queuectl apply`` with the output of kubectl, and ``--dry-run``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api.serving import serving
from tests.api.support import CLUSTER_QUEUE, CONFIGURATION, DOCUMENTS, FixedDiagnoser, running
from tests.doubles.store import MemoryDatabase, MemoryStore
from tests.support.cli import Cli
from tests.unit.test_cli_clients import queuectl, stream

__all__ = ["queuectl"]

Doc = dict[str, Any]
EVERY = stream(*DOCUMENTS.values())
KNOWS = FixedDiagnoser()


@pytest.fixture(scope="module")
def serves() -> Iterator[tuple[MemoryStore, str]]:
    store = MemoryStore()
    with serving(store, KNOWS) as address:
        yield store, address


@pytest.fixture
def database(serves: tuple[MemoryStore, str]) -> MemoryDatabase:
    serves[0].database = MemoryDatabase()
    KNOWS.running = running(("old", 1.0), ("new", 2.0))
    return serves[0].database


@pytest.fixture
def server(serves: tuple[MemoryStore, str], database: MemoryDatabase) -> str:
    return serves[1]


def as_kubectl_prints(document: Doc) -> Doc:
    """With what a server adds."""
    body = deepcopy(document)
    body["metadata"] |= {
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(document)},
        "creationTimestamp": "2026-08-22T10:00:00Z",
        "finalizers": ["kueue.x-k8s.io/resource-in-use"],
        "generation": 4,
        "managedFields": [{"manager": "kubectl", "operation": "Update"}],
        "resourceVersion": "12345",
        "uid": "8e2a",
    }
    body["status"] = {"conditions": [{"type": "Active", "status": "True"}], "pendingWorkloads": 3}
    return body


def listed(*documents: Doc) -> str:
    """The output of ``kubectl get … -o yaml``."""
    items = [as_kubectl_prints(document) for document in documents]
    return yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items, "metadata": {}})


def queue_of(gpus: int, **spec: Any) -> Doc:
    queue = deepcopy(CLUSTER_QUEUE)
    queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = gpus
    queue["spec"] |= spec
    return queue


QUOTA = "    spec.resourceGroups[0].flavors[h100].resources[nvidia.com/gpu].nominalQuota: 64 -> {}"


class TestWhatKubectlPrints:
    def test_it_applies_unchanged_and_a_second_apply_changes_nothing(self, queuectl: Cli) -> None:
        first = queuectl("apply", "-f", "-", stdin=listed(*DOCUMENTS.values()))
        assert (first.code, first.err) == (0, "")
        assert first.out.count(" created\n") == len(DOCUMENTS)
        again = queuectl("apply", "-f", "-", stdin=EVERY)
        assert again.out.count(" unchanged\n") == len(DOCUMENTS)

    def test_each_changed_field_and_each_field_without_effect_is_shown(self, queuectl: Cli) -> None:  # fmt: skip
        queuectl("apply", "-f", "-", stdin=EVERY)
        changed = queue_of(32, admissionChecks=["prov"])
        result = queuectl("apply", "-f", "-", stdin=listed(changed))
        assert result.out.splitlines() == [
            "clusterqueue/team-a configured",
            '    spec.admissionChecks: (none) -> ["prov"]',
            QUOTA.format(32),
        ]
        assert result.err == (
            "warning: ClusterQueue team-a: AdmissionCheck prov does not exist: no gang starts\n"
        )

    def test_the_file_of_kueues_manager_is_the_configuration(self, queuectl: Cli) -> None:
        settings = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "clientConnection": {"qps": 300, "burst": 500},
            "integrations": {"frameworks": ["batch/job"]},
            "waitForPodsReady": {"timeout": "10m"},
        }
        result = queuectl("apply", "-f", "-", stdin=stream(settings))
        assert (result.code, result.out) == (0, "configuration/default created\n")
        assert result.err == "warning: Configuration/default: integrations: not supported\n"
        printed = yaml.safe_load(queuectl("get", "configuration", "default", "-o", "yaml").out)
        assert printed["waitForPodsReady"] == {"timeout": "10m"}

    def test_a_configuration_of_another_name_is_bad_input(self, queuectl: Cli) -> None:
        other = {**CONFIGURATION, "metadata": {"name": "other"}}
        result = queuectl("apply", "-f", "-", stdin=stream(other))
        assert result.code == 2
        assert "metadata.name: 'other': the only Configuration" in result.err


class TestDryRun:
    def test_it_shows_every_change_and_stores_none(
        self, queuectl: Cli, database: MemoryDatabase
    ) -> None:
        queuectl("apply", "-f", "-", stdin=EVERY)
        before = dict(database.documents)
        new = {**CLUSTER_QUEUE, "metadata": {"name": "team-b"}}
        result = queuectl("apply", "--dry-run", "-f", "-", stdin=listed(queue_of(80), new, CONFIGURATION))  # fmt: skip
        assert result.code == 0
        assert result.out.splitlines() == [
            "configuration/default unchanged",
            "clusterqueue/team-a would be configured",
            QUOTA.format(80),
            "clusterqueue/team-b would be created",
            "no running gang would exceed a quota",
        ]
        assert database.documents == before

    def test_gangs_that_would_be_over_quota_are_named_the_youngest_first(
        self, queuectl: Cli
    ) -> None:
        queuectl("apply", "-f", "-", stdin=EVERY)
        result = queuectl("apply", "--dry-run", "-f", "-", stdin=stream(queue_of(8)))
        assert result.code == 0
        assert result.out.splitlines()[-1] == (
            "over quota: ClusterQueue team-a: 64 nvidia.com/gpu of flavor h100 in use, 8 allowed:"
            " team-a/new, team-a/old"
        )

    def test_a_server_without_running_gangs_yet_reports_that(self, queuectl: Cli) -> None:
        KNOWS.running = None
        result = queuectl("apply", "--dry-run", "-f", "-", stdin=stream(CLUSTER_QUEUE))
        assert result.code == 0
        assert result.out.endswith(
            "running gangs over quota: not known. Either you may not list workloads in all namespaces, or the server was started a moment ago\n"
        )

    def test_every_wrong_document_is_named_and_the_others_are_shown(
        self, queuectl: Cli, database: MemoryDatabase, tmp_path: Path
    ) -> None:
        wrong = {**CLUSTER_QUEUE, "spec": {"color": "red"}}
        worse = {**DOCUMENTS["/api/v1/topologies/racks"], "spec": {"levels": []}}
        file = tmp_path / "new.yaml"
        file.write_text(stream(wrong, worse, DOCUMENTS["/api/v1/cohorts/all"]))
        result = queuectl("apply", "--dry-run", "-f", str(file))
        assert result.code == 2
        assert f"{file}: document 1 (ClusterQueue/team-a): spec.color: unknown field" in result.err
        assert f"{file}: document 2 (Topology/racks): spec.levels: 0 levels" in result.err
        assert "cohort/all would be created" in result.out
        assert not database.documents

    def test_without_a_right_document_no_effect_is_shown(self, queuectl: Cli) -> None:
        wrong = {**CLUSTER_QUEUE, "spec": {"color": "red"}}
        result = queuectl("apply", "--dry-run", "-f", "-", stdin=stream(wrong))
        assert (result.code, result.out) == (2, "")

    def test_documents_without_a_namespace_get_the_default(self, queuectl: Cli) -> None:
        local = deepcopy(DOCUMENTS["/api/v1/namespaces/team-a/localqueues/default"])
        del local["metadata"]["namespace"]
        arguments = ("apply", "-n", "team-c", "-f", "-")
        created = queuectl(*arguments, "--dry-run", stdin=stream(local))
        assert created.out.startswith("localqueue/default in team-c would be created\n")
        queuectl(*arguments, stdin=stream(local))
        unchanged = queuectl(*arguments, "--dry-run", stdin=stream(local))
        assert unchanged.out.startswith("localqueue/default in team-c unchanged\n")


def test_a_directory_is_its_files_by_name(queuectl: Cli, tmp_path: Path) -> None:
    for number, document in enumerate(DOCUMENTS.values()):
        suffix = (".yaml", ".yml", ".json")[number % 3]
        (tmp_path / f"{number}{suffix}").write_text(json.dumps(document))
    (tmp_path / "notes.txt").write_text("not read")
    (tmp_path / "more").mkdir()
    applied = queuectl("apply", "-f", str(tmp_path))
    assert (applied.code, len(applied.out.splitlines())) == (0, len(DOCUMENTS))
    empty = queuectl("apply", "-f", str(tmp_path / "more"))
    assert (empty.code, "has no file that ends with .json, .yaml, .yml" in empty.err) == (2, True)


NOT_APPLIED = {
    "no document": ((), "the input has no objects"),
    "a job": (
        ({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}},),
        "document 1 (Job/j): kind: batch/v1 Job is not configuration; submit it with `kubectl create -f FILE`",
    ),
    "another kind": (
        ({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}},),
        "document 1 (Secret/s): kind: v1 Secret is not configuration; the kinds are ",
    ),
    "a version that is not read": (
        ({"apiVersion": "kueue.x-k8s.io/v1alpha1", "kind": "Cohort", "metadata": {"name": "c"}},),
        "document 1 (Cohort/c): apiVersion kueue.x-k8s.io/v1alpha1 of Cohort is not read; use ",
    ),
}


@pytest.mark.parametrize(("documents", "says"), NOT_APPLIED.values(), ids=NOT_APPLIED)
def test_each_document_that_cannot_be_applied_is_named(
    queuectl: Cli, documents: tuple[Doc, ...], says: str
) -> None:
    result = queuectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))
    assert (result.code, result.out) == (2, "")
    assert says in result.err


def test_two_equal_keys_of_a_mapping_are_refused(queuectl: Cli) -> None:
    text = yaml.safe_dump(CLUSTER_QUEUE) + "kind: ClusterQueue\n"
    result = queuectl("apply", "-f", "-", stdin=text)
    assert (result.code, result.out) == (2, "")
    assert "key 'kind' appears twice, first on line" in result.err
