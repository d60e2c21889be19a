"""The delivery of events in a process of serve: it waits for the API server, and follows the file with the receivers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from structlog.testing import capture_logs

from queuectl.control import notifications
from queuectl.control.notifications import Notifications
from queuectl.control.progress import SteadyClock
from queuectl.domain.containment import Containment
from queuectl.domain.errors import ClusterUnavailable
from queuectl.domain.notifications import Mode
from queuectl.notify.receivers_file import ReceiverList
from queuectl.telemetry.metrics import MetricsRecorder
from tests.doubles.store import MemoryStore

HOOK = {"name": "hook", "kind": "webhook", "url": "https://hooks.example.org/", "hmacSecretFile": "absent"}  # fmt: skip


async def test_the_file_is_followed_and_deliveries_begin_when_the_cluster_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REFRESH_SECONDS", "_FIRST_PAUSE", "_LONGEST_PAUSE"):
        monkeypatch.setattr(notifications, name, 0.01)
    file, store, asked = tmp_path / "receivers.yaml", MemoryStore(), 0

    async def installation() -> str:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise ClusterUnavailable("connection refused")
        return "cluster-1"

    metrics = MetricsRecorder()
    service = Notifications(
        ReceiverList(file),
        store.notifications,
        metrics.notifications,
        Containment(SteadyClock(), metrics.containment.report),
        "replica-1",
        installation,
    )
    file.write_text("receivers: 1")
    with capture_logs() as lines:
        tasks = [asyncio.create_task(task()) for task in (service.deliver, service.follow_file)]
        await until(lambda: service.receivers.error != "")
        file.write_text(yaml.safe_dump({"receivers": [HOOK]}))
        cursors = store.database.notifications.cursors
        await until(lambda: ("hook", Mode.IMMEDIATE) in cursors)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    events = [line["event"] for line in lines]
    assert events.count("cluster_identity_not_read") == 2
    assert events.count("receivers_refused") == events.count("receivers_read") == 1
    assert events.count("credential_unreadable") == 1


async def until(reached: Callable[[], bool]) -> None:
    """Wait for it, five seconds at most."""
    async with asyncio.timeout(5):
        while not reached():  # noqa: ASYNC110 - a file has no Event
            await asyncio.sleep(0.01)
