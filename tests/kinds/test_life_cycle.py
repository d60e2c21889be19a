"""One life cycle of each kind, from its creation over an eviction and a lost pod to its end; audited revision by revision."""

from __future__ import annotations

import pytest

from queuectl.objects import keys
from tests.kinds.entries import ENTRIES
from tests.kinds.entry import Entry, racks
from tests.system.actions import remove, until_empty
from tests.system.installation import RACK, Installation

# The first test of an operator on a machine builds it.
pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda one: one.kind)
def test_a_gang_is_placed_evicted_started_again_repaired_and_ends(
    installation: Installation, entry: Entry
) -> None:
    lives(installation, entry)


def lives(installation: Installation, entry: Entry) -> None:
    """Run one life cycle."""
    kind = installation.kinds[entry.kind]
    with installation.workspace(32, strategy="StrictFIFO") as workspace:
        made = entry.submit(workspace, "gang", 4, priority="low", required=RACK)
        assert kind.is_suspended(made)
        assert all(keys.GATE in str(one) for one in kind.templates(made))
        assert len({*racks(entry.runs(workspace, "gang", 4))}) == 1

        entry.submit(workspace, "urgent", 4, priority="high")
        workspace.until_state("urgent", "Running")
        until_empty(workspace, "gang")
        remove(workspace, "urgent")
        again = workspace.until_state("gang", "Running")
        assert (again["attempt"], again["evictions"]) == (2, 1)

        slots = {(p.podset, p.rank): p.node for p in entry.runs(workspace, "gang", 4)}
        lost = workspace.running("gang")[-1]
        entry.lose(workspace, lost)
        workspace.until_running("gang", 4, lambda p: p.uid != lost.uid, "all four run again")
        assert {(p.podset, p.rank): p.node for p in workspace.running("gang")} == slots

        if "finish" in entry.without:
            return
        entry.finish(workspace, "gang")
        done = workspace.until_state("gang", "Finished")
        assert (done["reason"]["code"], done["attempt"]) == ("Succeeded", 2)
