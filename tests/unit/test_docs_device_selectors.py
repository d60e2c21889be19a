"""The page on selectors names each function of Kubernetes, and its expressions are evaluated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from queuectl.cel.kubernetes import KUBERNETES
from queuectl.devices.selectors import selector
from queuectl.domain.errors import BadInput

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "device-selectors.md").read_text()
EXPRESSIONS = re.findall(r"^    (\S.*)$", PAGE, re.MULTILINE)
REFUSED = [
    'quantity("1").asApproximateFloat() > 0.5',
    "[2, 1].sort() == [1, 2]",
    "[1, 1].distinct() == [1]",
    "[1].slice(0, 1) == [1]",
    "[[1]].flatten() == [1]",
    'device.attributes["a.example"].exists(k, v, k == v)',
    "isURL('https://example.com')",
    "isIP('10.0.0.1')",
    "format.uuid().validate('x').hasValue()",
    "cel.bind(d, device, d.driver == 'a')",
    "has(device.attributes)",
    "[device.attributes].size() == 1",
]


def _rows(state: str) -> str:
    return "\n".join(line for line in PAGE.splitlines() if line.endswith(f"| {state} |"))


def test_the_page_names_all_functions():
    named = set(re.findall(r"`([\w.]+)`", _rows("yes")))
    assert {function.name for function in KUBERNETES} <= named


@pytest.mark.parametrize("source", EXPRESSIONS)
def test_an_expression_of_the_page_is_evaluated(source):
    assert selector(source) is not None


@pytest.mark.parametrize("source", REFUSED)
def test_the_parts_that_the_page_calls_refused_are_refused(source):
    with pytest.raises(BadInput):
        selector(source)
