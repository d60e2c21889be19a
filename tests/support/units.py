"""A scheduler for pytest-xdist: a unit of tests runs whole on one worker, and units start in the order of the collection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]


class Units(LoadScopeScheduling):  # type: ignore[misc]
    """For ``--dist loadfile --no-loadscope-reorder``.

    xdist's own groups do nothing with pytest 9.2, and do not say so (https://github.com/pytest-dev/pytest-xdist/issues/1386).
    """

    def __init__(self, config: pytest.Config, log: Any, unit: Callable[[str], str]) -> None:
        """``unit``: the name of a test's unit, from the id of the test."""
        super().__init__(config, log)
        self._unit = unit

    def _split_scope(self, nodeid: str) -> str:
        return self._unit(nodeid)
