"""Times and durations on the command line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from queuectl.cli.errors import CommandFailed, Exit
from queuectl.cli.times import ago, ahead


@pytest.mark.parametrize("read", [ago, ahead])
@pytest.mark.parametrize(
    "text", ["99999999h", "999999999d", "9999-12-31T23:59:59-23:59", "2026-12-01", "soon"]
)
def test_a_time_that_no_calendar_has_is_refused_with_its_option(
    read: Callable[[str, str], float], text: str
) -> None:
    with pytest.raises(CommandFailed, match=r"^--since: ") as refused:
        read(text, "--since")
    assert refused.value.code is Exit.BAD_INPUT
