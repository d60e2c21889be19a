"""The process that handles inputs. This module imports no stage, as the process imports it at its start."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection

from tests.fuzz.figures import Result, Stage
from tests.fuzz.process import Child, answer


def _handle(seed: int) -> Result:
    if seed < 0:
        os._exit(3)
    return Result(defects=[str(1 // seed)])


def _run_stage(connection: Connection) -> None:
    answer(connection, {"small": Stage("small", _handle, frozenset())})


def test_an_input_that_ends_the_process_is_reported_and_the_next_one_is_handled() -> None:
    child = Child(_run_stage)
    try:
        assert child.handle("small", -1) == "the process ended, exit code 3"
        [failed, right] = [child.handle("small", seed) for seed in (0, 1)]
        assert isinstance(failed, tuple)
        assert "ZeroDivisionError" in failed[0].defects[0]
        assert isinstance(right, tuple)
        assert right[0].defects == ["1"]
    finally:
        child.stop()
