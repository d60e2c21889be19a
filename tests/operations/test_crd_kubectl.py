"""kubectl on the CRDs: apply, get, describe, explain, edit, diff, server-side apply, status, and the way from and to the database."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from queuectl.objects.configuration.config_kinds import CUSTOM_KINDS
from queuectl.objects.configuration.queue_config import validate
from tests.api.serving import serving
from tests.api.support import FixedDiagnoser
from tests.doubles.store import MemoryStore
from tests.operations.custom import CustomCluster, Document
from tests.operations.test_crd_validation import HOSTILE, KINDS, ROWS, refused
from tests.support.cli import queuectl_with
from tests.system.demo_cluster import tools
from tests.system.transcript import ROOT, Page, shell
from tests.unit.test_config_fields import GPU, Fields, document, groups, merged, nested

pytestmark = pytest.mark.operations

QUEUE = "clusterqueues.queuectl.dev"


def named(body: Document, name: str) -> Fields:
    return merged(dict(body), nested("metadata.name", name))


def queue(name: str, **spec: Any) -> Fields:
    return named(document("ClusterQueue", {"spec": spec}), name)


# ---- the verbs of kubectl


def test_apply_creates_changes_and_finds_nothing_to_do(api: CustomCluster) -> None:
    text = yaml.safe_dump(queue("applied", cohortName="a"))
    for result in ("created", "unchanged"):
        assert (
            api.done("apply", "-f", "-", stdin=text)
            == f"{QUEUE.replace('s.', '.', 1)}/applied {result}\n"
        )
    changed = yaml.safe_dump(queue("applied", cohortName="b"))
    assert "configured" in api.done("apply", "-f", "-", stdin=changed)


def test_get_prints_columns_by_short_name_and_by_category(api: CustomCluster) -> None:
    rows = {
        "ClusterQueue": queue("shown", cohortName="all"),
        "LocalQueue": document("LocalQueue"),
        "Cohort": document("Cohort", nested("spec.parentName", "root")),
        "ResourceFlavor": document("ResourceFlavor", nested("spec.topologyName", "racks")),
        "Topology": document("Topology"),
        "WorkloadPriorityClass": document("WorkloadPriorityClass", {"value": 7}),
    }
    api.apply(*rows.values(), manager="git")
    heads = {kind.kind: api.done("get", kind.short).splitlines() for kind in CUSTOM_KINDS}
    assert {kind: lines[0].split()[1:] for kind, lines in heads.items()} == {
        "ClusterQueue": ["COHORT", "PENDING", "ADMITTED", "READY", "AGE"],
        "LocalQueue": ["CLUSTERQUEUE", "PENDING", "ADMITTED", "READY", "AGE"],
        "Cohort": ["PARENT", "READY", "AGE"],
        "ResourceFlavor": ["TOPOLOGY", "READY", "AGE"],
        "Topology": ["LEVELS", "READY", "AGE"],
        "WorkloadPriorityClass": ["VALUE", "READY", "AGE"],
    }
    cells = {kind: line.split() for kind, lines in heads.items() for line in lines[1:]}
    assert cells["LocalQueue"][1] == "cq"
    assert cells["WorkloadPriorityClass"][1] == "7"
    listed = api.done("get", "queuectl", "-A", "-o", "name").splitlines()
    assert {line.partition(".")[0] for line in listed} == {kind.singular for kind in CUSTOM_KINDS}


@pytest.mark.parametrize("kind", CUSTOM_KINDS, ids=lambda kind: kind.kind)
def test_explain_describes_each_field(api: CustomCluster, kind: Any) -> None:
    text = api.done("explain", kind.resource, "--recursive", "--output=plaintext-openapiv2")
    assert "FIELDS" in text
    plain = api.done("explain", kind.resource)
    assert "<empty>" not in plain.split("FIELDS")[0]


def test_explain_has_the_sentence_of_the_reference_page(api: CustomCluster) -> None:
    text = " ".join(api.done("explain", f"{QUEUE}.spec.policy.idleReclaim.windowSeconds").split())
    assert "windowSeconds <integer>" in text
    assert "The time for which all GPUs must be idle; default 1800." in text


def test_describe_shows_spec_and_status(api: CustomCluster) -> None:
    api.apply(queue("described", resourceGroups=groups()), manager="git")
    text = api.done("describe", QUEUE, "described")
    assert f"{GPU}" in text
    assert "Nominal Quota:" in text


def test_diff_prints_a_change_and_its_exit_code(api: CustomCluster) -> None:
    api.apply(queue("compared", cohortName="a"), manager="git")
    changed = yaml.safe_dump(queue("compared", cohortName="b"))
    done = api.kubectl("diff", "--server-side", "--field-manager=git", "-f", "-", stdin=changed)
    assert done.returncode == 1, done.stderr
    assert "-  cohortName: a" in done.stdout
    assert "+  cohortName: b" in done.stdout


def test_edit_opens_an_editor_again_with_the_reason(api: CustomCluster, tmp_path: Path) -> None:
    api.apply(queue("edited", cohortName="before"), manager="git")
    api.done("edit", QUEUE, "edited", KUBE_EDITOR="sed -i s/before/after/")
    assert api.read("ClusterQueue", "edited")["spec"] == {"cohortName": "after"}
    editor = "sed -i 's/cohortName: after/cohortName: a b/'"
    wrong = api.kubectl("edit", QUEUE, "edited", KUBE_EDITOR=editor, TMPDIR=str(tmp_path))
    assert wrong.returncode != 0
    opened_again = [file.read_text() for file in tmp_path.glob("kubectl-edit-*.yaml")]
    assert any("# * spec.cohortName: Invalid value" in text for text in opened_again)
    assert api.read("ClusterQueue", "edited")["spec"] == {"cohortName": "after"}


def test_an_unknown_field_is_refused_and_left_out_without_validation(api: CustomCluster) -> None:
    text = yaml.safe_dump(queue("typing", cohort="a", cohortNmae="b"))
    refused = api.kubectl("apply", "-f", "-", stdin=text)
    assert refused.returncode == 1
    assert 'unknown field "spec.cohortNmae"' in refused.stderr
    warned = api.kubectl("apply", "--validate=warn", "-f", "-", stdin=text)
    assert (warned.returncode, 'unknown field "spec.cohortNmae"' in warned.stderr) == (0, True)
    assert api.read("ClusterQueue", "typing")["spec"] == {"cohort": "a"}


# ---- server-side apply of two field managers


def test_two_managers_own_fields_and_entries_of_one_object(api: CustomCluster) -> None:
    mine = queue("shared", resourceGroups=groups(), cohortName="all", admissionChecks=["budget"])
    theirs = queue("shared", policy={"maxPriority": 5}, admissionChecks=["security"])
    api.apply(mine, manager="git")
    api.apply(theirs, manager="operator")
    spec = api.read("ClusterQueue", "shared")["spec"]
    assert spec["admissionChecks"] == ["budget", "security"]
    assert (spec["cohortName"], spec["policy"]) == ("all", {"maxPriority": 5})
    api.apply(queue("shared", policy={"maxPriority": 5}), manager="operator")
    assert api.read("ClusterQueue", "shared")["spec"]["admissionChecks"] == ["budget"]


def test_a_conflict_of_two_managers_names_the_field(api: CustomCluster) -> None:
    api.apply(queue("contested", cohortName="a"), manager="git")
    other = yaml.safe_dump(queue("contested", cohortName="b"))
    refused = api.kubectl(
        "apply", "--server-side", "--field-manager=operator", "-f", "-", stdin=other
    )
    assert refused.returncode == 1
    assert 'conflict with "git"' in refused.stderr
    assert ".spec.cohortName" in refused.stderr
    api.apply(queue("contested", cohortName="b"), manager="operator", force=True)
    assert api.read("ClusterQueue", "contested")["spec"] == {"cohortName": "b"}


def test_taints_are_merged_by_key_and_effect_and_tolerations_are_one_value(
    api: CustomCluster,
) -> None:
    def flavor(taint: str, tolerations: list[Fields]) -> Fields:
        spec = {"nodeTaints": [{"key": taint, "effect": "NoSchedule"}], "tolerations": tolerations}
        return named(document("ResourceFlavor", {"spec": spec}), "tainted")

    api.apply(flavor("a", [{"operator": "Exists"}]), manager="git")
    taint = flavor("b", [])
    del taint["spec"]["tolerations"]
    api.apply(taint, manager="operator")
    spec = api.read("ResourceFlavor", "tainted")["spec"]
    assert [one["key"] for one in spec["nodeTaints"]] == ["a", "b"]
    text = yaml.safe_dump(flavor("b", [{"key": "x", "operator": "Exists"}]))
    refused = api.kubectl(
        "apply", "--server-side", "--field-manager=operator", "-f", "-", stdin=text
    )
    assert ".spec.tolerations" in refused.stderr


# ---- status


def test_the_status_is_a_subresource_and_no_generation(api: CustomCluster) -> None:
    api.apply({**queue("observed"), "status": {"pendingWorkloads": 9}}, manager="git")
    assert "status" not in api.read("ClusterQueue", "observed")
    status = {
        "observedGeneration": 1,
        "pendingWorkloads": 3,
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Used",
                "message": "",
                "lastTransitionTime": "2026-11-27T12:00:00Z",
                "observedGeneration": 1,
            }
        ],
    }
    patch = yaml.safe_dump({"status": status})
    api.done("patch", QUEUE, "observed", "--subresource=status", "--type=merge", "-p", patch)
    seen = api.read("ClusterQueue", "observed")
    assert (seen["status"], seen["metadata"]["generation"]) == (status, 1)
    line = api.done("get", "qcq", "observed").splitlines()[1]
    assert line.split()[1:3] == ["3", "True"]  # empty cells are blank
    api.apply(queue("observed", cohortName="a"), manager="git")
    assert api.read("ClusterQueue", "observed")["metadata"]["generation"] == 2


# ---- from the database and back


def test_the_page_on_custom_resources(api: CustomCluster) -> None:
    bodies = list(yaml.safe_load_all((ROOT / "docs/examples/queues.yaml").read_text()))
    for body in bodies:
        if space := body["metadata"].get("namespace"):
            api.done("create", "namespace", space)
    with serving(MemoryStore(), FixedDiagnoser()) as address:
        environment = tools(api.cluster) | {"QUEUECTL_SERVER": address}
        with shell(environment) as started:
            assert started.type("queuectl apply -f docs/examples/queues.yaml")[0] == 0
            page = Page("custom-resources.md", started)
            page.type("kubectl apply --server-side")
            page.type("queuectl config export")
            page.type("kubectl get queuectl")
            page.type("kubectl explain")
            page.type("kubectl patch")
            page.type("kubectl patch", status=1)
            assert "spec.cohortName" in started.errors
            page.type("kubectl get -A")
            page.type("queuectl apply")
            page.end("kubectl delete -f deploy/chart/definitions")
            exported = started.type("queuectl get clusterqueue team-a -o yaml")[1]
    assert yaml.safe_load(exported)["spec"]["policy"]["maxPriority"] == 1000


def stored() -> list[Fields]:
    """Each accepted row of the tables, under its own name, in the form of the database."""
    accepted = [body for by, what, body in HOSTILE if by == "both" and "deep" not in what]
    rows = [named(row, f"x{n}") for n, row in enumerate([*ROWS, *accepted]) if row["kind"] in KINDS]
    return [validate(row)[0] for row in rows if refused(row) is None]


def bare(body: Document) -> Fields:
    """The part of an object that the database stores."""
    kept, _ = validate(body)
    return kept


def test_an_export_applies_and_is_imported_as_it_was(
    api: CustomCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    documents = stored()
    assert len(documents) > 90
    file = tmp_path / "queues.yaml"
    with serving(MemoryStore(), FixedDiagnoser()) as address:
        monkeypatch.setenv("QUEUECTL_SERVER", address)
        monkeypatch.setenv("KUBECONFIG", "/nowhere")
        queuectl = partial(queuectl_with, monkeypatch, capsys)
        file.write_text(yaml.safe_dump_all(documents))
        assert queuectl("apply", "-f", str(file)).code == 0
        exported = queuectl("config", "export", "--kubernetes").out
    api.done("apply", "--server-side", "-f", "-", stdin=exported)
    resources = ",".join(kind.resource for kind in CUSTOM_KINDS)
    listed = yaml.safe_load(api.done("get", resources, "-A", "-o", "yaml"))
    ours = {(d["kind"], d["metadata"]["name"]): d for d in documents}
    back = {(d["kind"], d["metadata"]["name"]): bare(d) for d in listed["items"]}
    assert {key: back[key] for key in ours} == ours
    with serving(MemoryStore(), FixedDiagnoser()) as address:
        monkeypatch.setenv("QUEUECTL_SERVER", address)
        file.write_text(yaml.safe_dump(listed))
        assert queuectl("apply", "-f", str(file)).code == 0
        again = list(yaml.safe_load_all(queuectl("config", "export", "--kubernetes").out))
    assert {(d["kind"], d["metadata"]["name"]): d for d in again}.items() >= ours.items()
