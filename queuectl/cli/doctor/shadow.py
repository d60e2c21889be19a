"""Findings on shadow mode: what it can read, whether records grow, how long they are kept, and when its reports are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from queuectl.cli.doctor.findings import Finding, Level
from queuectl.domain.words import some

PREFIX: Final = "queuectl_shadow_"
_CHECK: Final = "shadow"
_STOPPED_SECONDS: Final = 1800.0
"""The age of the last observation above which the records have stopped, as in the alert."""
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0


def findings(gauges: Mapping[str, float], now: float) -> list[Finding]:
    """Findings from the metrics of one replica; none if it does not run in shadow mode.

    Args:
        gauges: metrics of shadow mode, without their prefix.
        now: unix seconds.
    """
    last = gauges.get("last_observation_timestamp_seconds", 0.0)
    if not last:
        return []
    began = gauges.get("records_began_timestamp_seconds", 0.0)
    if not began:
        message = (
            "this replica has recorded no observation: another one leads, or the records stopped"
        )
        return [Finding(_CHECK, Level.UNKNOWN, message, "ask the leader, and read /readyz")]
    return [_records(gauges, now - last, now - began), *_left_out(gauges), _report(gauges, now)]


def _records(gauges: Mapping[str, float], age: float, length: float) -> Finding:
    kept = _span(gauges.get("retention_seconds", 0.0))
    extent = f"records of {_span(length)}, which are kept for {kept}"
    if age > _STOPPED_SECONDS:
        fix = "docs/how-to/runbook.md, QueuectlShadowStopped"
        return Finding(
            _CHECK, Level.PROBLEM, f"no observation was recorded for {_span(age)}; {extent}", fix
        )
    return Finding(_CHECK, Level.OK, f"the last observation is {_span(age)} old; {extent}")


def _left_out(gauges: Mapping[str, float]) -> list[Finding]:
    number = gauges.get("left_out", 0.0)
    if not number:
        return []
    message = f"{number:g} objects or groups of gangs are not in the last observation"
    return [Finding(_CHECK, Level.WARNING, message, "queuectl report shadow -o json names them")]


def _report(gauges: Mapping[str, float], now: float) -> Finding:
    made = gauges.get("simulated_timestamp_seconds", 0.0)
    if made:
        text = f"the last simulated report is {_span(now - made)} old"
        return Finding(_CHECK, Level.OK, text)
    first = gauges.get("records_began_timestamp_seconds", 0.0)
    due = first + gauges.get("report_interval_seconds", 0.0) - now
    when = f"is due in {_span(due)}" if due > 0 else "is being made, or failed"
    return Finding(_CHECK, Level.OK, f"the first simulated report of this replica {when}")


def reading(refused: Sequence[str]) -> list[Finding]:
    """Findings on what shadow mode can read. ``refused``: the lists that the API server refuses."""
    if not refused:
        return [Finding("rights", Level.OK, "the account can list all objects of a plan")]
    message = f"the API server refuses these lists: {some(refused)}"
    fix = "upgrade the release with shadow=true: docs/how-to/shadow.md"
    return [Finding("rights", Level.PROBLEM, message, fix)]


def _span(seconds: float) -> str:
    """Whole units, the largest that is at least 1."""
    for unit, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(seconds, 0.0):.0f} s"
