"""A process whose loop hangs ends with the traces of its threads, even if a call holds the interpreter."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from queuectl.control.progress import LoopProgress

HANGS = {
    "the event loop": "time.sleep(60)",
    "a step of the leader": "await asyncio.sleep(60)",
    "a call that holds the interpreter": "ctypes.PyDLL(None).sleep(60)",
}


def ended(body: str) -> subprocess.CompletedProcess[str]:
    program = f"""
        import asyncio, ctypes, time
        from queuectl.control import progress
        progress._EVERY = 0.05

        async def main():
            one = progress.LoopProgress(longest_step=0.2)
            watch = asyncio.create_task(progress.end_if_stalled(lambda: one.stalled, silence=0.4))
            await asyncio.sleep(0.1)
            {body}
            watch.cancel()

        asyncio.run(main())
        print("ended by itself")
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)


@pytest.mark.parametrize("what", HANGS)
def test_a_process_that_hangs_is_ended(what: str) -> None:
    done = ended(HANGS[what])
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "ended by itself" not in done.stdout


def test_a_process_whose_loop_waits_for_work_is_not_ended() -> None:
    body = "with one.idle(): await asyncio.sleep(1.0)"
    done = ended(body)
    assert (done.returncode, done.stdout) == (0, "ended by itself\n")


def test_a_loop_is_stalled_after_its_longest_step(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("queuectl.control.progress.time.monotonic", lambda: now)
    one = LoopProgress(longest_step=10.0)
    now = 109.0
    assert not one.stalled
    now = 111.0
    assert "no progress for 11 s" in one.stalled
    one.step()
    assert not one.stalled
    with one.idle():
        now = 500.0
        assert not one.stalled
    assert not one.stalled
