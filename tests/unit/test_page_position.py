"""Cursors of lists of workloads: those that another program wrote are refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from queuectl.domain.errors import BadInput
from queuectl.domain.queries import PagePosition, WorkloadOrder


@pytest.mark.parametrize(
    ("order", "key"),
    [
        pytest.param("-urgency", [3, 10**400, "a", "b", "c"], id="a time of 400 digits"),
        pytest.param("-urgency", [10**400, 1.0, "a", "b", "c"], id="a rank of 400 digits"),
        pytest.param("-queuedAt", [float("nan"), "a", "b", "c"], id="a time that is NaN"),
        pytest.param("-queuedAt", [float("inf"), "a", "b", "c"], id="an infinite time"),
        pytest.param("name", ["a\0", "b", "c"], id="NUL"),
        pytest.param("name", ["a\ud800", "b", "c"], id="half a surrogate pair"),
        pytest.param("user", ["a\0", "a", "b", "c"], id="NUL in the value of the order"),
        pytest.param("name", [["a"], "b", "c"], id="a list"),
    ],
)
def test_a_cursor_with_a_value_that_no_workload_has_is_refused(order: str, key: list[Any]) -> None:
    text = json.dumps([order, *key])
    cursor = base64.urlsafe_b64encode(text.encode()).decode()
    with pytest.raises(BadInput, match="is not one this server gave out"):
        PagePosition.parse(cursor, WorkloadOrder.parse(order))
