"""``queuectl doctor`` on a real control plane: it reports each defect, and none in a healthy cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queuectl.cli import connection, reads
from queuectl.cli.doctor import cluster
from queuectl.cli.doctor.cluster import OwnReplica, ServerObjects
from queuectl.cli.doctor.findings import Finding, Level
from queuectl.client import ClientOptions
from queuectl.cluster.apply import optional
from queuectl.objects.kinds import KINDS
from tests.support.controlplane import SYSTEM_NAMESPACE, ControlPlane

pytestmark = pytest.mark.system

BINDING = (
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/queuectl-namespaces"
)


NOTHING = ServerObjects()
EXECUTES = ServerObjects(
    flavors=[{"metadata": {"name": "h100"}, "spec": {"policy": {"migReconfiguration": "Execute"}}}]
)


async def examined(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, known: ServerObjects = NOTHING
) -> list[Finding]:
    """The findings for a caller with all rights."""
    chosen = ClientOptions(kubeconfig=str(plane.cluster.kubeconfig))
    monkeypatch.setattr(reads, "connection_options", lambda: chosen)
    assert connection.connection_options() != chosen
    return await cluster.examine(SYSTEM_NAMESPACE, known)


def bad(findings: list[Finding]) -> set[tuple[str, Level]]:
    return {(each.check, each.level) for each in findings if each.level is not Level.OK}


async def test_a_cluster_made_from_deploy_has_no_finding_but_the_missing_leader(
    control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = await examined(control_plane, monkeypatch)
    assert bad(findings) <= {("leader", Level.PROBLEM)}, findings
    assert {each.check for each in findings} == {
        "cluster", "rights", "policies", "leader", "nodes", "others",
    }  # fmt: skip


async def examined_inside(plane: ControlPlane, holder: str = "queuectl-1") -> list[Finding]:
    """The findings of a replica, with the rights of queuectl alone."""
    replica = OwnReplica(holder, plane.kubeconfig, KINDS)
    return await cluster.examine(SYSTEM_NAMESPACE, NOTHING, replica)


async def test_the_account_of_a_pod_has_all_rights_for_its_checks(
    control_plane: ControlPlane,
) -> None:
    findings = await examined_inside(control_plane)
    assert bad(findings) <= {("leader", Level.PROBLEM)}, findings
    assert {each.check for each in findings} == {"cluster", "rights", "policies", "leader", "nodes"}


async def test_a_pod_without_rights_names_them(control_plane: ControlPlane) -> None:
    nobody = control_plane.cluster.kubeconfig_for_user("without-rights")
    findings = await examined_inside(replace(control_plane, kubeconfig=nobody))
    assert bad(findings) >= {("rights", Level.PROBLEM), ("nodes", Level.UNKNOWN)}, findings
    [lacking] = (each for each in findings if each.check == "rights")
    assert "the ServiceAccount queuectl lacks rights: list nodes, watch nodes" in lacking.message
    assert all(each.fix for each in findings if each.level is not Level.OK)


async def test_a_removed_right_and_a_removed_binding_are_named(
    control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = control_plane.cluster.client
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/queuectl"
    before, binding = client.get(role), client.get(BINDING)
    rules = [rule for rule in before["rules"] if "tokenreviews" not in rule["resources"]]
    client.patch(role, {"rules": rules})
    client.delete(BINDING)
    try:
        findings = await examined(control_plane, monkeypatch)
    finally:
        client.patch(role, {"rules": before["rules"]})
        kept = {key: binding[key] for key in ("apiVersion", "kind", "spec")}
        client.create(
            BINDING.rpartition("/")[0], {**kept, "metadata": {"name": "queuectl-namespaces"}}
        )
    messages = [each.message for each in findings if each.level is Level.PROBLEM]
    assert "the ServiceAccount queuectl lacks rights: create tokenreviews" in messages
    assert "not installed: ValidatingAdmissionPolicyBinding queuectl-namespaces" in messages


async def test_a_flavor_that_permits_changes_of_mig_needs_the_opt_in(
    control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def of_mig() -> Finding:
        findings = await examined(control_plane, monkeypatch, EXECUTES)
        return next(one for one in findings if one.check == "mig")

    client = control_plane.cluster.client
    before = await of_mig()
    assert before.level is Level.WARNING
    assert "lacks rights: get nodes, patch nodes" in before.message
    assert "ValidatingAdmissionPolicy queuectl-mig-reconfiguration" in before.message
    assert "opt-in migReconfiguration" in before.fix
    documents = optional("mig-reconfiguration")
    client.apply(*documents)
    try:
        assert (await of_mig()).level is Level.OK
    finally:
        for document in documents:
            client.delete(client.path_of(document))


async def test_gangs_that_request_one_numa_node_need_the_definition_of_its_objects(
    control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = ServerObjects(not_aligned=["team-a/train"])
    findings = await examined(control_plane, monkeypatch, known)
    (found,) = (one for one in findings if one.check == "numa")
    assert found.level is Level.WARNING
    assert "1 gang (team-a/train) requests one NUMA node for each pod" in found.message
    assert "CustomResourceDefinition" in found.message
