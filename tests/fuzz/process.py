"""A process that handles inputs, and that an input can end. It imports no stage, so that it starts fast with those of a test."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Final

from tests.fuzz.figures import Result, Stage

INPUT_SECONDS: Final = 300.0
"""An input that takes longer is a defect. The machine can be busy."""
ENDING_SECONDS: Final = 5.0
_END: Final = -1


def handled(run: Callable[[int], Result], seed: int) -> Result:
    """The result of one input. An error that it raises is a defect."""
    try:
        return run(seed)
    except Exception:  # noqa: BLE001  # it is what the fuzzer looks for
        return Result(defects=[traceback.format_exc()])


def answer(connection: Connection, stages: Mapping[str, Stage]) -> None:
    """Handle the inputs that are asked for, until the end."""
    connection.send(None)
    while (asked := connection.recv()) != _END:
        name, seed = asked
        began = time.monotonic()
        result = handled(stages[name].run, seed)
        connection.send((result, time.monotonic() - began))


class Child:
    """A process that handles inputs. It is started again after an input has ended it."""

    def __init__(self, run: Callable[[Connection], None]) -> None:
        """``run``: in the process; it calls :func:`answer` with its stages."""
        self._run = run
        self._context = multiprocessing.get_context("spawn")
        self._start()

    def _start(self) -> None:
        self._own, other = self._context.Pipe()
        self._process = self._context.Process(target=self._run, args=(other,))
        self._process.start()
        other.close()
        self._own.recv()  # it is ready; an error here is one of the fuzzer

    def handle(self, name: str, seed: int) -> tuple[Result, float] | str:
        """The result and its time, or how the process ended."""
        self._own.send((name, seed))
        try:
            if self._own.poll(INPUT_SECONDS):
                answer: tuple[Result, float] = self._own.recv()
                return answer
            how = f"no answer in {INPUT_SECONDS:.0f} s"
        except (EOFError, OSError):
            how = "the process ended"
        self._process.join(ENDING_SECONDS)
        self._process.kill()
        self._process.join()
        how += f", exit code {self._process.exitcode}"
        self._start()
        return how

    def stop(self) -> None:
        """End it."""
        self._own.send(_END)
        self._process.join()
