from __future__ import annotations

import pytest

from tests.doubles.store import MemoryStore


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()
