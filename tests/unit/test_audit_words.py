"""Each request that the audit log records has words for what was to be done, to which object, and with which result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from queuectl.api.auth.authentication import CHANGES, SESSION_PATH
from queuectl.api.auth.layers import WIDE
from queuectl.domain.audit import result_of, uid_of, words_of
from queuectl.objects.configuration.config_kinds import CONFIG_KINDS
from queuectl.web.pages.audit import page_of

DESCRIPTION = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"
NAMES = {"UID": "team-a/train"}


def audited() -> Iterator[tuple[str, str, str]]:
    """Operation, method and path, with a name for each parameter, of the requests that have a line."""
    for path, methods in json.loads(DESCRIPTION.read_text())["paths"].items():
        for method, operation in methods.items():
            if method.upper() in CHANGES and path not in (*WIDE, SESSION_PATH):
                yield operation["operationId"], method.upper(), path


def test_each_audited_operation_has_words_and_each_object_a_page():
    operations = list(audited())
    assert len(operations) > 60
    for operation, method, template in operations:
        path = template.format(namespace="team-a", name="NAME", uid="UID", number=7)
        words = words_of(operation, method, path, NAMES)
        assert str(words) != f"{method} {path}", operation
        assert bool(words.target) is ("{" in template), operation
        page = page_of(path.replace("NAME", "name"))
        assert bool(words.target) is (page is not None), operation
        assert uid_of(operation, path) == ("UID" if "UID" in path else None), operation


@pytest.mark.parametrize(
    ("operation", "path", "words"),
    [
        ("holdWorkload", "/api/v1/workloads/UID/hold", "hold team-a/train"),
        ("holdWorkload", "/api/v1/workloads/gone/hold", "hold gone"),
        (
            "moveNamedWorkload",
            "/api/v1/namespaces/team-b/workloads/eval/move?kind=Job",
            "move team-b/eval to another queue",
        ),
        ("holdWorkloads", "/api/v1/commands/hold", "hold several workloads"),
        ("readPodLog", "/ui/workloads/UID/pods/p/logs", "read a log of team-a/train"),
        ("testReceiver", "/api/v1/receivers/chat/test", "send a test event to receiver chat"),
        ("deleteSubscription", "/ui/notifications/7", "delete subscription 7"),
        ("stopClusterQueue", "/api/v1/clusterqueues/team-a/stop", "stop ClusterQueue team-a"),
        (
            "resumeLocalQueue",
            "/api/v1/namespaces/team-a/localqueues/main/resume",
            "resume LocalQueue team-a/main",
        ),
        (
            "putLocalQueue",
            "/api/v1/namespaces/localqueues/localqueues/main",
            "apply LocalQueue localqueues/main",
        ),
        ("deleteLocalQueue", "/ui/config/localqueues/team-a/main", "delete LocalQueue team-a/main"),
        ("putBudget", "/ui/config/budgets/spent", "apply Budget spent"),
        ("topUpBudget", "/api/v1/budgets/team-a/topups", "top up Budget team-a"),
        (
            "confirmDeletion",
            "/api/v1/configurationowner/confirm",
            "confirm the deletion of configuration objects",
        ),
        ("", "/api/v1/nowhere", "POST /api/v1/nowhere"),
        ("holdWorkload", "", "POST "),
        ("putClusterQueue", "?x=/", "POST ?x=/"),
        ("unheardOf", "/api/v1/clusterqueues/{}", "POST /api/v1/clusterqueues/{}"),
    ],
)
def test_a_request_in_words(operation: str, path: str, words: str):
    assert str(words_of(operation, "POST", path, NAMES)) == words


def test_a_leader_names_its_writes_as_requests_do():
    for kind in CONFIG_KINDS:
        path = kind.path("team-a" if kind.namespaced else "", "x")
        name = "team-a/x" if kind.namespaced else "x"
        assert str(words_of(f"put{kind.kind}", "PUT", path, {})) == f"apply {kind.kind} {name}"


@pytest.mark.parametrize(
    ("status", "detail", "words"),
    [
        (200, "", "done"),
        (201, "created", "done: created"),
        (202, "", "accepted"),
        (403, "ben may not", "refused: ben may not"),
        (404, "", "refused"),
        (500, "", "failed"),
        (None, "", "not known: the server or the database stopped during the request"),
    ],
)
def test_a_result_in_words(status: int | None, detail: str, words: str):
    assert result_of(status, detail) == words
