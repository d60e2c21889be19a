"""The kinds of tests of rules that hold for all kinds of jobs. ``make test-kinds`` runs those after the first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pytest
from _pytest.mark import ParameterSet


def first_alone(kinds: Iterable[str]) -> tuple[ParameterSet, ...]:
    """Parameters of a test: the first of these kinds in ``make test-fast``, the others in ``make test-kinds``."""
    return tuple(
        pytest.param(kind, marks=pytest.mark.kinds if number else ())
        for number, kind in enumerate(kinds)
    )


ALIKE: Final = first_alone(("Job", "PyTorchJob"))
"""A kind of one podset, and one of several."""
