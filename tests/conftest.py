"""Profiles of Hypothesis, and the folder of tests on a control plane.

`make test` draws the same examples every time, and a third of the number that a property sets.
`make explore` draws all of them at random, and can find new failures.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import structlog
from hypothesis import settings

from queuectl.cli.interpreter import tune_interpreter
from queuectl.domain.containment import Containment, SetAside

settings.register_profile("same", derandomize=True, deadline=None, max_examples=34)
settings.register_profile("fresh", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("same")

SYSTEM: Final = [
    Path(__file__).parent / name for name in ("system", "cluster", "utilization", "kinds")
]
"""`make test-system` collects these folders only: a collection of all tests takes each worker ten seconds."""
VERSIONS: Final = Path(__file__).parent / "versions"
"""`make test-versions` collects this folder."""


@pytest.fixture(autouse=True)
def _no_unit_is_set_aside(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Containment hides no defect: an unexpected error fails the test, unless the test names it (mark ``sets_aside``)."""
    if request.node.get_closest_marker("sets_aside"):
        yield
        return
    found: list[str] = []
    tell = Containment._tell

    def told(self: Containment, one: SetAside, error: BaseException | None) -> None:
        text = "".join(traceback.format_exception(error)) if error is not None else ""
        found.append(f"{one.boundary} {one.ref}: {one.place}\n{text}")
        tell(self, one, error)

    monkeypatch.setattr(Containment, "_tell", told)
    yield
    assert not found, "set aside: " + "\n".join(found)


def pytest_configure() -> None:
    # As `queuectl serve` does. The garbage collector takes a fifth of the processor time of the tests otherwise, and tracebacks
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
