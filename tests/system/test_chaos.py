"""The short form of `make chaos`: faults under load break no invariant, and nothing is lost."""

from __future__ import annotations

import pytest

from tests.chaos.hostile import CLASSES
from tests.chaos.suite import chaos
from tests.system.installation import Installation

pytestmark = [pytest.mark.system, pytest.mark.faults]

FAULTS = (("responses to commits lost", "API writes delayed"), ("leader killed",))


def test_faults_and_hostile_objects_break_no_invariant_and_lose_no_gang(
    installation: Installation,
) -> None:
    installation.controller.kill()  # two others serve the cluster in the meantime
    try:
        result = chaos(installation.cluster, 1, groups=FAULTS, gangs=8, pace=0.4)
    finally:
        installation.controller.restart()
        installation.controller.wait_ready()
    assert result.ok, "\n".join(
        [result.table(), *result.violations, *result.losses, *result.contained]
    )
    assert result.starts >= 8
    assert result.struck >= 2, "answers were lost"
    assert all(result.hostile[name] or result.refused[name] for name in CLASSES)
