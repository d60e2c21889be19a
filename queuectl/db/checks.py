"""Admission checks as documents in columns of the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from queuectl.db.engine import storable
from queuectl.domain.checks import (
    NO_CHECKS,
    CheckReport,
    Checks,
    CheckState,
    CheckStatus,
    PodSetUpdate,
)
from queuectl.domain.fleet import Effect, Toleration


def checks_document(checks: Checks) -> dict[str, Any] | None:
    """None without content."""
    if checks == NO_CHECKS:
        return None
    return {
        "statuses": [_status_document(status) for status in checks.statuses],
        "retries": dict(checks.retries),
        "round": checks.round,
        "unasked": dict(checks.unasked),
    }


def checks_from(document: Mapping[str, Any] | None) -> Checks:
    """Read what :func:`checks_document` wrote."""
    if document is None:
        return NO_CHECKS
    statuses = tuple(map(_status_from, document["statuses"]))
    return Checks(statuses, document["retries"], document["round"], document["unasked"])


def report_document(report: CheckReport) -> dict[str, Any]:
    """A report of a command."""
    return {
        "check": report.check,
        "state": report.state.value,
        "message": storable(report.message),
        "requeue_after": report.requeue_after,
        "updates": _updates_document(report.updates),
    }


def report_from(document: Mapping[str, Any]) -> CheckReport:
    """Read what :func:`report_document` wrote."""
    return CheckReport(
        document["check"],
        CheckState(document["state"]),
        document["message"],
        document["requeue_after"],
        _updates_from(document["updates"]),
    )


def _status_document(status: CheckStatus) -> dict[str, Any]:
    return {
        "name": status.name,
        "state": status.state.value,
        "since": status.since,
        "message": storable(status.message),
        "updates": _updates_document(status.updates),
        "due": status.due,
    }


def _status_from(document: Mapping[str, Any]) -> CheckStatus:
    return CheckStatus(
        document["name"],
        CheckState(document["state"]),
        document["since"],
        document["message"],
        _updates_from(document["updates"]),
        document["due"],
    )


def _updates_document(updates: Sequence[PodSetUpdate]) -> list[dict[str, Any]]:
    return [
        {
            "podset": update.podset,
            "labels": update.labels,
            "annotations": update.annotations,
            "node_selector": update.node_selector,
            "tolerations": [
                (t.key, t.operator, t.value, t.effect, t.seconds) for t in update.tolerations
            ],
        }
        for update in updates
    ]


def _updates_from(documents: Sequence[Mapping[str, Any]]) -> tuple[PodSetUpdate, ...]:
    return tuple(
        PodSetUpdate(
            document["podset"],
            _pairs(document["labels"]),
            _pairs(document["annotations"]),
            _pairs(document["node_selector"]),
            tuple(_toleration(*values) for values in document["tolerations"]),
        )
        for document in documents
    )


def _pairs(values: Sequence[Sequence[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((key, value) for key, value in values)


def _toleration(
    key: str, operator: str, value: str, effect: str | None, seconds: int | None
) -> Toleration:
    return Toleration(key, operator, value, Effect(effect) if effect else None, seconds)
