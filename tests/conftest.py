"""How Hypothesis draws its examples, and where tests on a control plane live.

`make test` draws the same ones every time, so that a change is judged by what it changed, and a third of what a property asks
for; `make explore` draws all of them fresh, and finds what nobody thought of.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None, max_examples=34)
settings.register_profile("fresh", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("same")

SYSTEM: Final = [Path(__file__).parent / name for name in ("system", "cluster", "utilization")]
"""`make test-system` looks nowhere else: to collect all tests takes each of its workers ten seconds."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("system") and not set(SYSTEM) & set(item.path.parents):
            raise pytest.UsageError(f"{item.nodeid}: `make test` would never run it there")
