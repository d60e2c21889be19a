"""Programs of a system of the benchmark that end by themselves start again, and what all their processes used counts."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bench.scale.kubelet import BackOff, Kubelet, last_words

# It lives for a while after its work, so that a reading every 0.01 s sees all of it, also on a busy machine.
BUSY = """
import time
while time.process_time() < 0.1: pass
time.sleep(0.3)
"""


class Process:
    """A Python program."""

    def __init__(self, code: str, log: Path) -> None:
        self._code = code
        self.log = log
        self.restart()

    def restart(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-c", self._code], stdout=log, stderr=log
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def kubelet() -> Iterator[Kubelet]:
    one = Kubelet(BackOff(first=0.01, longest=0.02), poll=0.01)
    yield one
    one.close()


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_program_that_ends_starts_again_and_its_processor_time_adds_up(
    kubelet: Kubelet, tmp_path: Path
) -> None:
    program = Process(f"{BUSY}\nraise SystemExit('lost the lease: error')", tmp_path / "log")
    before = kubelet.usage()
    kubelet.keep("busy", program)
    until(lambda: kubelet.usage().restarts["busy"] >= 2)
    kubelet.release("busy")
    program.kill()
    used = kubelet.usage()
    assert used.cpu_since(before)["busy"] > 0.15  # more than one process, in ticks of 10 ms
    assert used.peak["busy"] > 0
    [remark] = kubelet.remarks()
    assert re.match(
        rf"busy: restarts: {used.restarts['busy']}, last exit code 1 after \d+ s, .*lost the lease: error",
        remark,
    )


def test_a_program_that_is_ended_on_purpose_stays_away_and_counts(
    kubelet: Kubelet, tmp_path: Path
) -> None:
    program = Process(f"{BUSY}\ntime.sleep(60)", tmp_path / "log")
    kubelet.keep("busy", program)
    until(lambda: kubelet.usage().cpu["busy"] >= 0.05)
    kubelet.release("busy")
    program.kill()
    ended = kubelet.usage()
    assert ended.cpu["busy"] >= 0.05
    assert ended.restarts == {"busy": 0}
    assert kubelet.remarks() == []
    program.restart()
    kubelet.keep("busy", program)
    until(lambda: kubelet.usage().cpu["busy"] >= ended.cpu["busy"] + 0.05)
    program.kill()
    until(lambda: kubelet.usage().restarts["busy"] == 1)
    kubelet.close()
    program.kill()
    assert re.match(r"busy: restarts: 1, last end by SIGKILL after \d+ s", kubelet.remarks()[0])


def test_delays_are_those_of_a_kubelet() -> None:
    back_off = BackOff()
    delays: list[float] = []
    for ran in (1, 1, 1, 1, 1, 1, 1, 1, 600, 1):
        delays.append(back_off.delay(delays[-1] if delays else None, ran))
    assert delays == [0, 10, 20, 40, 80, 160, 300, 300, 0, 10]


def test_the_last_words_name_a_cause(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("begins\npanic: nil\n\tgoroutine 1\n" + 300 * "x" + "\n\n")
    assert last_words(log) == ["panic: nil"]
    log.write_text('{"level": "error", "ts": 1, "msg": "Could not run", "error": "lease lost"}\n[]')
    assert last_words(log) == ["Could not run: lease lost"]
    log.write_text("1\n2\n3\n" + 300 * "x")
    assert last_words(log) == ["2", "3", 240 * "x"]
