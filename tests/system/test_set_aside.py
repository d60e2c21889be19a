"""A rig fails if a process that it started has set a unit aside."""

from __future__ import annotations

import pytest

from queuectl.demo.manifests import Pods
from queuectl.localcluster import NodeSpec
from queuectl.localcluster.client import wait_until
from tests.support.contained import counted, metrics_of
from tests.system.installation import installed
from tests.system.test_careful import POISONED

pytestmark = pytest.mark.system


def test_a_rig_fails_for_an_object_that_no_mark_names() -> None:
    nodes = NodeSpec(blocks=1, racks_per_block=1, hosts_per_rack=1)
    ends = pytest.raises(
        AssertionError, match=r"set aside \d+ times at object: KeyError in .*, first jobs/.*/broken"
    )
    with ends, installed(nodes, {"PYTHONPATH": str(POISONED)}, operators=()) as found:
        controller = found.controller
        with found.workspace(8) as workspace:
            workspace.job("broken", Pods(1, gpus=8))
            wait_until(lambda: bool(counted(metrics_of(controller))), "it is set aside", 60)
    assert not controller.home.exists()
