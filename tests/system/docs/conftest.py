"""One cluster for the tests of all pages of the documentation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.town import Town, seat, town
from tests.system.transcript import Shell


@pytest.fixture(scope="package", name="town")
def the_town() -> Iterator[Town]:
    with town() as built:
        yield built


@pytest.fixture
def typing(town: Town) -> Iterator[Shell]:
    """A shell on the cluster, without workloads and configuration."""
    town.clear()
    with seat(town.house) as started:
        yield started
