"""``queuectl doctor`` on a real control plane: it reports each defect, and none in a healthy cluster."""

from __future__ import annotations

import pytest

from queuectl.cli import connection, reads
from queuectl.cli.connection import ConnectionOptions
from queuectl.cli.doctor import cluster
from queuectl.cli.doctor.findings import Finding, Level
from tests.support.controlplane import SYSTEM_NAMESPACE, ControlPlane

pytestmark = pytest.mark.system

BINDING = (
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/queuectl-namespaces"
)


async def examined(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """The findings for a caller with all rights."""
    chosen = ConnectionOptions(kubeconfig=str(plane.cluster.kubeconfig))
    monkeypatch.setattr(reads, "given", lambda: chosen)
    assert connection.given() != chosen
    return await cluster.examine(SYSTEM_NAMESPACE, None, None)


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
