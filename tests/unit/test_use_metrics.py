"""Exported metrics of the utilization signal."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from queuectl.domain.utilization import SourceFault, UseState
from queuectl.telemetry.fleet import UseGauges, UseMetrics


class Shown:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = UseMetrics(self.registry)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"queuectl_utilization_{name}", labels)


def test_an_alarm_returns_to_zero_when_its_cause_ends() -> None:
    shown = Shown()
    shown.metrics.evaluated({SourceFault.STALE: 3}, [], 0.1)
    assert shown.value("alarms", reason="stale") == 3
    shown.metrics.evaluated({}, [], 0.1)
    assert [shown.value("alarms", reason=fault) for fault in SourceFault] == [0] * len(SourceFault)


def test_gangs_are_counted_by_queue_and_state_of_the_newest_look() -> None:
    shown = Shown()
    idle, busy = UseGauges("a", UseState.IDLE, 8, 0.01), UseGauges("a", UseState.ACTIVE, 8, 0.75)
    shown.metrics.evaluated({}, [idle, idle, idle._replace(cluster_queue="b")], 0.1)
    assert shown.value("gangs", cluster_queue="a", status="Idle") == 2
    assert shown.value("gpus", cluster_queue="a", status="Idle") == 16
    shown.metrics.evaluated({}, [busy], 0.1)
    assert shown.value("gangs", cluster_queue="a", status="Active") == 1
    assert shown.value("busy_gpus", cluster_queue="a") == 6
    assert shown.value("gangs", cluster_queue="a", status="Idle") == 0
    assert shown.value("gangs", cluster_queue="b", status="Idle") is None


def test_what_is_unknown_is_not_busy_and_not_idle() -> None:
    shown = Shown()
    shown.metrics.evaluated({}, [UseGauges("a", UseState.UNKNOWN, 8, None)], 0.1)
    assert shown.value("gpus", cluster_queue="a", status="Unknown") == 8
    assert shown.value("busy_gpus", cluster_queue="a") == 0


def test_looks_are_timed_by_whether_there_was_an_answer() -> None:
    shown = Shown()
    shown.metrics.evaluated({}, [], 0.1)
    shown.metrics.evaluated({SourceFault.UNREACHABLE: 1}, [], 30.0)
    for result in ("success", "unreachable"):
        assert shown.value("look_duration_seconds_count", result=result) == 1


def test_a_process_that_does_not_lead_shows_nothing() -> None:
    shown = Shown()
    shown.metrics.evaluated({}, [UseGauges("a", UseState.IDLE, 8, 0.0)], 0.1)
    shown.metrics.forget()
    assert shown.value("alarms", reason="stale") is None
    assert shown.value("gangs", cluster_queue="a", status="Idle") is None
