"""``queuectl doctor`` on a real control plane: it finds a sound cluster sound, and what was broken broken."""

from __future__ import annotations

import pytest

from queuectl.cli import connection
from queuectl.cli.connection import ConnectionOptions
from queuectl.cli.doctor import cluster
from queuectl.cli.doctor.findings import Finding, Level
from tests.support.controlplane import SYSTEM_NAMESPACE, ControlPlane

pytestmark = pytest.mark.system

BINDING = (
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/queuectl-namespaces"
)


async def examined(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """What it says to whoever may do everything."""
    chosen = ConnectionOptions(kubeconfig=str(plane.cluster.kubeconfig))
    monkeypatch.setattr(cluster, "given", lambda: chosen)
    assert connection.given() != chosen
    return await cluster.examine(SYSTEM_NAMESPACE, None, None)


def bad(findings: list[Finding]) -> set[tuple[str, Level]]:
    return {(each.check, each.level) for each in findings if each.level is not Level.OK}


async def test_a_cluster_as_deploy_makes_it_is_sound_but_for_the_leader_nobody_started(
    control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = await examined(control_plane, monkeypatch)
    assert bad(findings) <= {("leader", Level.PROBLEM)}, findings
    assert {each.check for each in findings} == {
        "cluster", "rights", "policies", "leader", "nodes", "others",
    }  # fmt: skip


async def test_a_right_and_a_binding_that_were_taken_away_are_named(
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
    said = [each.message for each in findings if each.level is Level.PROBLEM]
    assert "the ServiceAccount queuectl lacks rights: create tokenreviews" in said
    assert "not installed: ValidatingAdmissionPolicyBinding queuectl-namespaces" in said
