"""The comparison of granted rights with audit logs, on logs of a few requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from queuectl.localcluster import layout
from tests.system.rights_used import Right, compare, deployed, granted_rights, main, read

NAME = "queuectl-system:queuectl"
BASIC = 'RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "b" to Group "system:authenticated"'


def right(verb: str, resource: str, *, group: str = "", where: str = "", name: str = "") -> Right:
    return Right(NAME, group, resource, verb, where, name)


def event(
    verb: str,
    *,
    code: int = 200,
    decision: str = "allow",
    stage: str = "",
    reason: str = "",
    **reference: str,
) -> dict[str, Any]:
    """As the API server logs it."""
    return {
        "stage": stage or ("ResponseStarted" if verb == "watch" else "ResponseComplete"),
        "verb": verb,
        "user": {"username": f"system:serviceaccount:{NAME}"},
        "objectRef": reference,
        "responseStatus": {"code": code},
        "annotations": {
            "authorization.k8s.io/decision": decision,
            "authorization.k8s.io/reason": reason,
        },
    }


def logged(folder: Path, *events: dict[str, Any]) -> Path:
    (folder / "c.log").write_text("".join(json.dumps(one) + "\n" for one in events))
    return folder


@pytest.mark.parametrize(
    ("granted", "use", "covered"),
    [
        (right("list", "pods"), right("list", "pods"), True),
        (right("get", "pods"), right("get", "pods", where="a", name="x"), True),
        (right("get", "pods", where="a"), right("get", "pods", where="a", name="x"), True),
        (right("get", "pods", where="a"), right("get", "pods", where="b", name="x"), False),
        (right("get", "pods", where="a"), right("list", "pods"), False),
        (right("get", "pods", name="x"), right("get", "pods", name="y"), False),
        (right("get", "pods"), right("list", "pods"), False),
        (right("get", "pods"), right("get", "pods/status"), False),
        (right("get", "jobs", group="batch"), right("get", "jobs", group="x"), False),
        (right("get", "pods"), right("get", "pods")._replace(account="a:b"), False),
    ],
)
def test_a_request_needs_the_right_that_covers_it(
    granted: Right, use: Right, covered: bool
) -> None:
    assert granted.covers(use) == covered


def test_both_differences_are_found(tmp_path: Path) -> None:
    logs = logged(
        tmp_path,
        event("list", resource="pods"),
        event("patch", resource="pods", namespace="a", name="x"),
        event("patch", resource="pods", namespace="b", name="x", code=422),
        event("get", resource="secrets", namespace="a", name="x", decision="forbid", code=403),
        event("get", resource="secrets", namespace="b", name="y", decision="forbid", code=403),
        event("watch", resource="pods", decision="forbid", code=403),
        event("get", resource="pods", subresource="status", namespace="a", name="x"),
        {**event("get"), "objectRef": None},  # discovery
        event("create", resource="selfsubjectreviews", reason=BASIC),
    )
    listing, patching, watching = (right(verb, "pods") for verb in ("list", "patch", "watch"))
    found = compare([listing, patching, watching], read(logs))
    assert found.used == {listing: (1, 1), patching: (2, 1)}
    assert found.unused == (watching,)
    assert found.ungranted == {right("get", "pods/status"): 1}
    assert found.refused == {right("get", "secrets"): 2}
    assert found.early == {watching: 1}


def test_a_watch_counts_when_it_starts_and_once(tmp_path: Path) -> None:
    started = event("watch", resource="pods")
    ended = event("watch", resource="pods", stage="ResponseComplete")
    requests = read(logged(tmp_path, started, ended))
    assert requests.allowed == {right("watch", "pods"): 1}


def test_rights_come_from_bindings_for_each_verb_resource_and_name() -> None:
    granted = set(granted_rights(deployed()))
    own = "queuectl-system"
    assert {
        right("watch", "nodes"),
        right("delete", "pods"),  # an opt-in
        right("patch", "leases", group="coordination.k8s.io", where=own, name="queuectl"),
        right("create", "pods", where=own),
    } <= granted
    # Roles for people are bound by admins; queuectl itself reads objects and writes statuses.
    own_group = {
        (one.verb, "/status" in one.resource) for one in granted if one.group == "queuectl.dev"
    }
    assert own_group == {("list", False), ("watch", False), ("patch", True)}


def test_it_fails_without_logs_and_while_rights_are_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(tmp_path) == 1
    logged(tmp_path, event("list", resource="pods"))
    assert main(tmp_path) == 1
    printed = capsys.readouterr().out
    assert "- watch, pods (core), all, cluster, queuectl-system:queuectl" in printed


def test_the_api_server_writes_a_log_to_the_path_in_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    place = layout.create("audited")
    monkeypatch.delenv(layout.AUDIT_LOGS, raising=False)
    assert layout.audit_flags(place) == ()
    monkeypatch.setenv(layout.AUDIT_LOGS, str(tmp_path / "logs"))
    assert f"--audit-log-path={tmp_path / 'logs' / 'audited.log'}" in layout.audit_flags(place)
