"""Profiles of Hypothesis, and the folder of tests on a control plane.

`make test` draws the same examples every time, and a fifth of the number that a property sets.
`make explore` draws all of them at random, and can find new failures.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import structlog
from hypothesis import settings

from queuectl.cli.program import tune_interpreter
from tests.support.contained import OPEN, no_unit_is_set_aside

settings.register_profile("same", derandomize=True, deadline=None, max_examples=20)
settings.register_profile("fresh", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("same")

SYSTEM: Final = [
    Path(__file__).parent / name for name in ("system", "cluster", "utilization", "kinds")
]
"""`make test-system` collects these folders only: a collection of all tests takes each worker ten seconds."""
VERSIONS: Final = Path(__file__).parent / "versions"
"""`make test-versions` collects this folder."""


@pytest.fixture(autouse=True)
def _no_unit_is_set_aside(request: pytest.FixtureRequest) -> Iterator[None]:
    """Containment hides no defect: an unexpected error fails the test, unless the test names it (mark ``sets_aside``).

    It concerns this process, and the controllers that run as other processes.
    """
    if request.node.get_closest_marker("sets_aside"):
        yield
        for log in OPEN:
            log.accept()
        return
    with no_unit_is_set_aside():
        yield
    found = [line for log in OPEN for line in log.new()]
    assert not found, "\n".join(found)


def pytest_configure() -> None:
    # As `queuectl serve` does. The garbage collector takes a fifth of the CPU time of the tests otherwise, and tracebacks
    # with the variables of each frame a sixth of that of the API tests.
    tune_interpreter()
    plain = structlog.dev.ConsoleRenderer(
        colors=False, exception_formatter=structlog.dev.plain_traceback
    )
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], plain])


def pytest_collection_finish() -> None:
    # The modules and tests stay until the end: the garbage collector need not look through them again.
    tune_interpreter()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("system") and not {*SYSTEM, VERSIONS} & set(item.path.parents):
            raise pytest.UsageError(f"{item.nodeid}: `make test` would never run it there")
