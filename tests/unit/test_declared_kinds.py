"""Job kinds that the configuration declares: what is read, what is refused, and that they are read as built-in kinds are."""

from __future__ import annotations

import asyncio
import copy
import re
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import jsonschema
import msgspec
import pytest
import yaml

from queuectl.cluster.adapter import KubernetesCluster
from queuectl.cluster.client import Api
from queuectl.cluster.connection import Connection
from queuectl.cluster.resources import watched
from queuectl.cluster.server import compared
from queuectl.control.kueue import KueueDetector
from queuectl.control.settings import Settings, job_kinds
from queuectl.domain.errors import BadInput
from queuectl.domain.jobs import JobOutcome, JobRecord, PriorAdmission
from queuectl.objects.documents import as_document, read_documents
from queuectl.objects.kinds import KINDS, JobKinds, descriptions_of, with_declared
from queuectl.objects.kinds.declared import read_kinds
from queuectl.objects.kinds.described import DescribedKind
from queuectl.objects.kinds.makers import MAKERS
from queuectl.objects.kubernetes.pods import read_pod
from queuectl.objects.kubernetes.wire import WirePod
from queuectl.offline.inputs import read_snapshot
from tests.doubles.cluster import FakeCluster
from tests.doubles.store import MemoryStore
from tests.support.chart import CHART, DEPLOY, SCHEMA, schema
from tests.support.outside import declared_instead
from tests.unit.test_objects_kinds import CASES, load

OWN = Path(__file__).parents[2] / "docs" / "examples" / "own-kind"
DECLARED: dict[str, Any] = yaml.safe_load((OWN / "job-kinds.yaml").read_text())
GANGRUN: dict[str, Any] = yaml.safe_load((OWN / "gangrun.yaml").read_text())
WORKERS = {"name": "worker", "path": "spec", "count": [["workers"]]}


POLICY = re.compile(r"^kind: \w+AdmissionPolicy\nmetadata:\n  name: queuectl-(\S+)$", re.MULTILINE)


def kinds(*changes: dict[str, Any]) -> JobKinds:
    """The built-in kinds, and one declared kind for each change of the example."""
    given = [DECLARED["jobKinds"][0] | change for change in changes]
    return with_declared(read_kinds(yaml.safe_dump({"jobKinds": given}), "kinds.yaml"))


def read(body: dict[str, Any], known: JobKinds) -> JobRecord:
    kind = known[body["kind"]]
    found: JobRecord = kind.read(as_document(body).convert(kind.wire))
    return found


def gangrun(**status: str) -> dict[str, Any]:
    return copy.deepcopy(GANGRUN) | {"status": status}


def test_a_declared_kind_is_read_by_its_declaration() -> None:
    found = read(GANGRUN, kinds({}))
    assert (found.kind, found.queue, found.error, found.suspended) == (
        "GangRun",
        "training",
        None,
        False,
    )
    [podset] = found.podsets
    assert (podset.name, podset.count) == ("worker", 4)
    assert podset.shape.requests["nvidia.com/gpu"] == 8


@pytest.mark.parametrize(
    ("phase", "outcome", "drained"),
    [
        (None, None, False),
        ("Running", None, False),
        ("Stopped", None, True),
        ("Done", JobOutcome.SUCCEEDED, False),
        ("Broken", JobOutcome.FAILED, False),
    ],
)
def test_a_value_of_the_status_is_the_end_of_a_job(
    phase: str | None, outcome: JobOutcome | None, drained: bool
) -> None:
    status = {} if phase is None else {"phase": phase}
    found = read(gangrun(**status), kinds({}))
    assert (found.outcome, found.drained) == (outcome, drained)


def test_a_kind_that_confirms_no_suspension_has_stopped_when_its_pods_have_ended() -> None:
    no_value = kinds({"phase": {"path": "status.phase", "succeeded": ["Done"]}})
    no_condition = kinds({"phase": None, "conditions": {"suspended": ""}})
    assert read(gangrun(), no_value).drained
    assert read(gangrun(), no_condition).drained


DRIVER = {"name": "driver", "path": "spec", "template": "driverTemplate", "count": []}
LOGGER = {"name": "logger", "path": "spec.logger"}


def test_podsets_can_be_in_one_object_and_inside_each_other() -> None:
    known = kinds({"podsets": [DRIVER, WORKERS, LOGGER]})
    body = copy.deepcopy(GANGRUN)
    template = body["spec"]["template"]
    body["spec"] |= {"driverTemplate": template, "logger": {"replicas": 2, "template": template}}
    found = read(body, known)
    assert {podset.name: podset.count for podset in found.podsets} == {
        "driver": 1,
        "worker": 4,
        "logger": 2,
    }
    patch = known["GangRun"].start_patch(found, 1, "Starting")["spec"]
    marked = [patch["driverTemplate"], patch["template"], patch["logger"]["template"]]
    names = [one["metadata"]["labels"]["queuectl.dev/podset"] for one in marked]
    assert names == ["driver", "worker", "logger"]


def test_patches_write_to_the_declared_fields() -> None:
    kind, record = kinds({})["GangRun"], read(GANGRUN, kinds({}))
    started = kind.start_patch(record, 3, "Starting")
    assert started["spec"]["suspend"] is False
    assert started["spec"]["template"]["metadata"]["labels"]["queuectl.dev/attempt"] == "3"
    assert kind.stop_patch(record, 3, "Evicting")["spec"]["suspend"] is True


def test_the_object_for_the_dry_run_has_the_fields_of_the_probe() -> None:
    template: dict[str, Any] = {"spec": {"containers": []}}
    assert kinds({})["GangRun"].minimal_spec(template) == {
        "script": "none",
        "workers": 1,
        "template": template,
    }


def test_the_index_of_a_pod_is_that_of_the_declared_label_after_those_of_all_kinds() -> None:
    own, built_in = "research.example.com/index", "batch.kubernetes.io/job-completion-index"
    for labels, rank in (({own: "3"}, 3), ({own: "3", built_in: "1"}, 1), ({}, None)):
        pod = msgspec.convert({"metadata": {"name": "x", "labels": labels}}, WirePod)
        assert read_pod(pod, (own,)).rank == rank
        assert read_pod(pod).rank == (1 if built_in in labels else None)


def test_a_plan_of_files_has_jobs_of_a_declared_kind() -> None:
    documents = read_documents((OWN / "gangrun.yaml").read_text())
    planned = read_snapshot(documents, kinds=kinds({}))
    assert [one.workload.kind for one in planned.snapshot.pending] == ["GangRun"]
    assert read_snapshot(documents).account.ignored


@pytest.mark.parametrize(
    "file",
    [case for case in CASES if type(KINDS[load(case)[0]["kind"]]) is DescribedKind],
    ids=lambda file: file.parent.name,
)
def test_a_built_in_kind_that_is_declared_is_read_and_written_as_before(file: Path) -> None:
    body, _ = load(file)
    built_in = KINDS[body["kind"]]
    declared = declared_instead(body["kind"])[body["kind"]]
    before = built_in.read(as_document(body).convert(built_in.wire))
    after = declared.read(as_document(body).convert(declared.wire))
    assert after == before
    assert declared.minimal_spec({}) == built_in.minimal_spec({})
    if before.error is None:
        assert declared.start_patch(after, 2, "s") == built_in.start_patch(before, 2, "s")
        assert declared.stop_patch(after, 2, "s") == built_in.stop_patch(before, 2, "s")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"kind": "PyTorchJob"}, "kind: PyTorchJob is the name of another job kind"),
    ({"kind": "Job"}, "kind: Job is the name of another job kind"),
    ({"plural": "1runs"}, "plural: expected `str` matching regex '^[a-z][a-z0-9]*$'"),
    ({"plural": "statefulsets-scale"}, "plural: expected `str` matching regex '^[a-z][a-z0-9]*$'"),
    ({"plural": "jobsets"}, "plural: jobsets is the name of another kind"),
    ({"plural": "pods"}, "plural: pods is the name of another kind"),
    ({"kind": "CronJob"}, "kind: CronJob is the name of another job kind"),
    ({"plural": "rayservices"}, "plural: rayservices is the name of another kind"),
    ({"plural": "submitters"}, "plural: submitters is the name of another kind"),
    ({"group": "batch"}, "group: batch is not the group of a CustomResourceDefinition"),
    ({"suspend": "status.suspend"}, "suspend: status.suspend is not a field of the spec"),
    ({"suspend": "spec.namespace"}, "suspend: spec.namespace: namespace is a word of CEL"),
    ({"suspend": "spec['suspend']"}, "suspend: expected `str` matching regex"),
    ({"suspended": "spec.suspend"}, "suspended: unknown field"),
    ({"conditions": {"suspended": "It's"}}, "conditions.suspended: expected `str` matching regex"),
    (
        {"phase": {"path": "status.phase", "succeeded": ["Won't"], "suspended": ["Won't"]}},
        "phase.suspended[0]: expected `str` matching regex",
    ),
    (
        {"podsets": [WORKERS | {"only": {"path": "spec.a", "value": "a\\"}}]},
        "podsets[0].only.value: expected `str` matching regex",
    ),
    ({"operator": "trainingOperator"}, "operator: is for built-in kinds; set controller"),
    ({"podsets": []}, "podsets: is empty"),
    ({"podsets": [{"path": "spec"}]}, "podsets[0]: exactly one of types, key and name is needed, not none of them"),
    ({"podsets": [WORKERS | {"key": "name"}]}, "podsets[0]: exactly one of types, key and name is needed, not key and name"),
    ({"podsets": [WORKERS | {"path": "status"}]}, "podsets[0].path: status is not a field of the spec"),
    ({"podsets": [WORKERS | {"count": [[]]}]}, "podsets[0].count: a factor of it is empty"),
    (
        {"podsets": [{"path": "spec.a", "key": "name"}, WORKERS | {"path": "spec.a.b"}]},
        "podsets[1].path: spec.a.b is inside spec.a, which has entries",
    ),
    ({"podsets": [WORKERS | {"ranks": ["workers"]}]}, "podsets[0].ranks: is for built-in kinds; set index"),
    ({"podsets": [WORKERS, WORKERS]}, "podsets: worker is the name of two podsets"),
    (
        {"podsets": [{"path": "spec.a", "key": "name"}, {"path": "spec.b", "key": "name"}]},
        "podsets: two of them are lists: a kind has one list of podsets at most",
    ),
    ({"phase": {"path": "status.phase", "succeeded": []}}, "phase.succeeded: is empty"),
    (
        {"children": [{"kind": "Pod", "group": "x", "version": "v1", "plural": "pods"}]},
        "children[0].kind: Pod is none of",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("change", "error"), WRONG, ids=[error for _, error in WRONG])
def test_a_wrong_declaration_is_refused_with_the_kind_and_the_field(
    change: dict[str, Any], error: str
) -> None:
    name = change.get("kind", "GangRun")
    with pytest.raises(
        BadInput, match="^" + re.escape(f"kinds.yaml: jobKinds[0] ({name}): {error}")
    ):
        kinds(change)


def test_a_declared_kind_does_not_have_the_name_of_another_policy() -> None:
    """A plural has no dash, so names with one are free for policies."""
    texts = [file.read_text() for file in DEPLOY.rglob("*.yaml")]
    names = {name for text in texts for name in POLICY.findall(text) if "-" not in name}
    for plural in names:
        with pytest.raises(BadInput, match=f"plural: {plural} is the name of another kind"):
            kinds({"plural": plural})
    [in_chart] = re.findall(
        r"\$plurals := list (.*?) }}", (CHART / "templates" / "_helpers.tpl").read_text()
    )
    assert names - {kind.plural for kind in KINDS.values()} <= {
        *in_chart.replace('"', "").split()
    } | {maker.plural for maker in MAKERS}


@pytest.mark.parametrize("field", ["kind", "suspend", "podsets", "controller"])
def test_a_field_that_each_kind_needs_is_required(field: str) -> None:
    given = {name: value for name, value in DECLARED["jobKinds"][0].items() if name != field}
    with pytest.raises(BadInput, match=f"{field}: is required$"):
        read_kinds(yaml.safe_dump({"jobKinds": [given]}), "kinds.yaml")


def test_two_kinds_with_the_same_name_are_refused() -> None:
    with pytest.raises(
        BadInput,
        match=re.escape("jobKinds[1] (GangRun): kind: GangRun is the name of another job kind"),
    ):
        kinds({}, {"plural": "others"})


@pytest.mark.parametrize("text", ["{}", "jobKinds: x", "a: 1\n---\nb: 1\n"])
def test_a_file_without_the_list_is_refused(text: str) -> None:
    with pytest.raises(
        BadInput, match=re.escape("kinds.yaml: jobKinds: is required, as a list of job kinds")
    ):
        read_kinds(text, "kinds.yaml")


def served(change: dict[str, Any] | None = None) -> dict[str, Any]:
    """The document of the API server for the CustomResourceDefinition of the example, with other properties of the spec."""
    [version] = yaml.safe_load((OWN / "crd.yaml").read_text())["spec"]["versions"]
    schema = copy.deepcopy(version["schema"]["openAPIV3Schema"])
    schema["properties"]["spec"]["properties"] |= change or {}
    schema["x-kubernetes-group-version-kind"] = [
        {"group": "research.example.com", "version": "v1", "kind": "GangRun"}
    ]
    path = "/apis/research.example.com/v1/namespaces/{namespace}/gangruns/{name}"
    return {"components": {"schemas": {"a": schema}}, "paths": {path: {}}}


def differences(change: dict[str, Any], document: dict[str, Any]) -> list[str]:
    [one] = read_kinds(yaml.safe_dump({"jobKinds": [DECLARED["jobKinds"][0] | change]}), "x")
    return [": ".join(each) for each in compared(one, document)]


def test_a_declaration_fits_the_schema_of_its_kind() -> None:
    assert differences({}, served()) == []
    assert differences({}, {"components": {"schemas": {}}}) == []


NOWHERE = "the schema of the CustomResourceDefinition has no field"
LIST = {"path": "spec.groups", "key": "name"}
GROUP = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "replicas": {"type": "integer"}},
}
DIFFERENT: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"suspend": "spec.paused"}, served(), f"suspend: {NOWHERE} spec.paused"),
    ({"suspend": "spec.script"}, served(), "suspend: spec.script has the type string in the CustomResourceDefinition, not boolean"),
    ({"phase": None}, served(), f"conditions: {NOWHERE} status.conditions"),
    ({"phase": {"path": "status.state", "succeeded": ["x"]}}, served(), f"phase.path: {NOWHERE} status.state"),
    ({"podsets": [WORKERS | {"count": [["replicas"]]}]}, served(), f"podsets[0].count: spec: {NOWHERE} replicas"),
    ({"podsets": [WORKERS | {"template": "pods"}]}, served(), f"podsets[0].template: spec: {NOWHERE} pods"),
    ({"podsets": [LIST]}, served(), f"podsets[0].path: {NOWHERE} spec.groups"),
    (
        {"podsets": [LIST]},
        served({"groups": {"type": "array", "items": GROUP}}),
        f"podsets[0].template: spec.groups[]: {NOWHERE} template",
    ),
    (
        {"podsets": [{"path": "spec.roles", "types": ["Main"]}]},
        served({"roles": {"type": "object", "additionalProperties": GROUP}}),
        f"podsets[0].template: spec.roles[]: {NOWHERE} template",
    ),
    ({"plural": "gangs"}, served(), "plural: the API server serves no gangs in namespaces"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "document", "error"), DIFFERENT, ids=[error for *_, error in DIFFERENT]
)
def test_a_path_that_the_schema_does_not_have_is_named(
    change: dict[str, Any], document: dict[str, Any], error: str
) -> None:
    assert differences(change, document) == [error]


def test_the_schema_of_the_values_has_the_fields_of_a_declaration() -> None:
    assert SCHEMA.read_text() == schema(), "run `make manifests`"
    validator = jsonschema.Draft7Validator(yaml.safe_load(SCHEMA.read_text()))
    assert validator.is_valid(DECLARED)
    wrong: list[dict[str, Any]] = [
        {"suspended": "x"},
        {"suspend": "a b"},
        {"controller": {}},
        {"kind": "x'y"},
    ]
    for change in wrong:
        assert not validator.is_valid({"jobKinds": [DECLARED["jobKinds"][0] | change]})


async def test_the_controller_reads_the_file_and_has_a_connection_for_each_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = job_kinds(Settings(kinds_file=OWN / "job-kinds.yaml"))
    assert list(known) == [*KINDS, "GangRun"]
    connect = AsyncMock()
    monkeypatch.setattr(Api, "connect", connect)
    await KubernetesCluster.connect(Connection(), kinds=known)
    connect.assert_awaited_once_with(Connection(), watches=len(watched()) + 1)
    with pytest.raises(BadInput, match=r"^QUEUECTL_KINDS_FILE: .*No such file"):
        job_kinds(Settings(kinds_file=tmp_path / "absent"))


def test_a_job_of_a_declared_kind_is_taken_over_from_kueue() -> None:
    """Kueue runs jobs of other kinds by its integration for them."""

    class Left(FakeCluster):
        async def read_admissions(self) -> list[PriorAdmission]:
            return [PriorAdmission("u", kind, "a", "x") for kind in ("GangRun", "SlurmRun")]

    for known, kept in ((kinds({}), ["GangRun"]), (KINDS, [])):
        detector = KueueDetector(Left(), MemoryStore(), known)
        assert [one.kind for one in asyncio.run(detector.admissions())] == kept


def test_the_built_in_kinds_keep_their_order() -> None:
    assert list(kinds({})) == [*KINDS, "GangRun"]
    assert descriptions_of(kinds({}))[-1].kind == "GangRun"
