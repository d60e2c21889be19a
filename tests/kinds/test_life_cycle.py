"""One life cycle from the creation over an eviction and a lost pod to the end, audited revision by revision.

It runs four kinds whose controllers differ, on the control plane of tests/system. tests/kinds/test_matrix.py tests each step of all kinds with
their operators.
"""

from __future__ import annotations

from typing import Final

import pytest

from queuectl.demo.scenario import PodSetManifest
from tests.kinds.entries import ENTRIES
from tests.kinds.entry import Entry, racks
from tests.support.shared_resource import SharedResource
from tests.system.actions import remove
from tests.system.conftest import default_installation
from tests.system.installation import RACK, Installation

pytestmark = pytest.mark.system

KINDS: Final = ("Job", "PyTorchJob", "PodGroup", "StatefulSet")
"""Run by Kubernetes, by the training operator, by no controller, and by Kubernetes without an end."""


@pytest.fixture(scope="module")
def installation(shared_resource: SharedResource) -> Installation:
    """16 nodes of 8 GPUs: 2 blocks of 2 racks of 4."""
    return default_installation(shared_resource)


@pytest.mark.parametrize(
    "entry", [one for one in ENTRIES if one.kind in KINDS], ids=lambda one: one.kind
)
def test_a_gang_is_placed_evicted_started_again_repaired_and_ends(
    installation: Installation, entry: Entry
) -> None:
    lives(installation, entry)


def lives(installation: Installation, entry: Entry) -> None:
    """Run one life cycle, without what the kind has not."""
    with installation.workspace(32, strategy="StrictFIFO") as workspace:
        gang = entry.submit(workspace, "gang", 4, priority="low", required=RACK)
        assert gang.created_held
        pods = gang.runs()
        if "place" not in entry.without:
            assert len({*racks(pods)}) == 1

        workspace.job("urgent", PodSetManifest(4, gpus=8), priority_class="high")
        workspace.until_state("urgent", "Running")
        gang.until_stopped()
        gang.create_again()
        remove(workspace, "urgent")
        pods = gang.runs()
        if "requeue" not in entry.without:
            again = {(one["attempt"], one["evictions"]) for one in gang.until("Running")}
            assert again == {(2, 1)}

        if "repair" not in entry.without:
            slots, lost = gang.slots(), gang.losable()[-1]
            gang.lose(lost)
            workspace.until_running("gang", 4, lambda p: p.uid != lost.uid, "all four run again")
            assert gang.slots() == slots

        if "finish" not in entry.without:
            gang.finish()
            assert {one["reason"]["code"] for one in gang.until("Finished")} == {"Succeeded"}
