"""A rig fails if a process that it started has set a unit aside."""

from __future__ import annotations

import pytest

from queuectl.demo.scenario import PodSetManifest
from queuectl.localcluster.client import wait_until
from tests.support.shared_resource import SharedResource
from tests.system.test_careful import poisoned

pytestmark = [pytest.mark.system, pytest.mark.faults]


def test_a_rig_fails_for_an_object_that_no_mark_names(shared_resource: SharedResource) -> None:
    installation = shared_resource.get(poisoned)
    controller = installation.controller
    with installation.workspace(8) as workspace:
        workspace.job("broken", PodSetManifest(1, gpus=8))
        unit = f"jobs/{workspace.namespace}/broken"
        wait_until(lambda: unit in controller.log.read_text(), "it is set aside", 60)
    ends = pytest.raises(
        AssertionError, match=r"set aside \d+ times at object: KeyError in .*, first jobs/.*/broken"
    )
    with ends:
        shared_resource.end()
    assert not controller.home.exists()
