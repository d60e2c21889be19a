"""The short form of `make chaos`: faults under load break no invariant, and nothing is lost."""

from __future__ import annotations

import pytest

from tests.chaos.suite import chaos
from tests.system.house import House

pytestmark = pytest.mark.system

FAULTS = ("responses to commits lost", "API writes delayed", "leader killed")


def test_faults_under_load_break_no_invariant_and_lose_no_gang(home: House) -> None:
    home.controller.kill()  # two others serve the cluster meanwhile
    try:
        result = chaos(home.cluster, 1, names=FAULTS, gangs=8, pace=0.4)
    finally:
        home.controller.restart()
        home.controller.wait_ready()
    assert result.ok, "\n".join([result.table(), *result.violations, *result.losses])
    assert result.starts >= 8
    assert result.struck >= 2, "answers were lost"
