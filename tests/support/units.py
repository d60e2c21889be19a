"""A scheduler for pytest-xdist: a unit of tests runs on one worker, and units start in the order of the collection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # xdist ships no types


class Units(LoadScopeScheduling):  # type: ignore[misc]  # Any to the type checker, for the same reason
    """For ``--dist loadfile --no-loadscope-reorder``.

    Groups of xdist have no effect with pytest 9.2, without a warning (https://github.com/pytest-dev/pytest-xdist/issues/1386).
    """

    def __init__(self, config: pytest.Config, log: Any, unit: Callable[[str], str]) -> None:
        """``unit``: the name of a test's unit, from the id of the test."""
        super().__init__(config, log)
        self._unit = unit

    def _split_scope(self, nodeid: str) -> str:
        return self._unit(nodeid)

    def schedule(self) -> None:
        """Schedule as xdist does. It identifies tests by id, and would run only one of two tests with the same id."""
        if self.collection_is_completed:
            for collected in self.registered_collections.values():
                assert len(set(collected)) == len(collected), "tests share an id"
        super().schedule()
