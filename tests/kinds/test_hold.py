"""The effect of `queuectl hold` and `queuectl release` on each kind."""

from __future__ import annotations

import pytest

from tests.kinds.entries import ENTRIES
from tests.kinds.entry import Entry
from tests.system.actions import run_command
from tests.system.installation import Installation

pytestmark = [pytest.mark.system, pytest.mark.kinds, pytest.mark.timeout(1500)]

_RETURNING = [one for one in ENTRIES if "requeue" not in one.without]
"""The others end with their eviction."""


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
