"""The effect of `queuectl hold` and `queuectl release` on each kind."""

from __future__ import annotations

import time

import pytest

from queuectl.domain.jobs import PodRecord
from tests.kinds.entries import ENTRIES
from tests.kinds.entry import Entry
from tests.system.actions import run_command
from tests.system.installation import Installation, Workspace

pytestmark = [pytest.mark.system, pytest.mark.kinds, pytest.mark.timeout(1500)]

_RETURNING = [one for one in ENTRIES if "requeue" not in one.without]
"""The others end with their eviction."""
_STOPS_BEFORE_DELETION = [one for one in _RETURNING if one.kind != "RayCluster"]
"""KubeRay confirms the suspension of a RayCluster only after its pods are deleted."""


@pytest.mark.parametrize("entry", _RETURNING, ids=lambda one: one.kind)
def test_it_is_held_without_pods_and_released_as_its_next_attempt(
    installation: Installation, entry: Entry
) -> None:
    with installation.workspace(32) as workspace:
        gang = entry.submit(workspace, "gang", 4)
        gang.runs()
        for name in gang.names:
            run_command(workspace, name, "hold")
        gang.until("Held")
        gang.until_stopped()
        gang.create_again()
        for name in gang.names:
            run_command(workspace, name, "release")
        gang.runs()
        assert {one["attempt"] for one in gang.until("Running")} == {2}


@pytest.mark.parametrize("entry", _STOPS_BEFORE_DELETION, ids=lambda one: one.kind)
def test_it_does_not_fail_because_pods_of_its_last_attempt_are_deleted_late(
    installation: Installation, entry: Entry
) -> None:
    """Its containers have failed after SIGTERM. A kubelet deletes the pods later; here a finalizer makes that time longer."""
    with installation.workspace(32) as workspace:
        gang = entry.submit(workspace, "gang", 4)
        old = gang.runs()
        for pod in old:
            _set_finalizers(workspace, pod, ["example.com/keep"])
        for name in gang.names:
            run_command(workspace, name, "hold")
        gang.until("Held")
        for name in gang.names:
            run_command(workspace, name, "release")
        # An operator that counts the old pods ends the job in this time. Nothing shows that one has ignored them.
        time.sleep(3)
        assert "Finished" not in {workspace.state(name) for name in gang.names}
        for pod in old:
            _set_finalizers(workspace, pod, None)
        gang.create_again()
        gang.runs()
        assert {one["attempt"] for one in gang.until("Running")} == {2}


def _set_finalizers(workspace: Workspace, pod: PodRecord, finalizers: list[str] | None) -> None:
    path = f"/api/v1/namespaces/{workspace.namespace}/pods/{pod.name}"
    workspace.client.patch(path, {"metadata": {"finalizers": finalizers}})
