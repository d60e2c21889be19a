"""The program of docs/examples/training on this machine: a resumed run is the same as a run without interruption."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real import images, sandbox, training
from tests.real.training import RANKS, LocalRun

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

OPTIONS = ("--steps=120", "--save-every=50")
"""The processes are on two cores, without pauses: 120 steps are enough to interrupt them."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The unpacked image with the program."""
    if sandbox.home() is None:
        pytest.skip("the image is unpacked in the sandbox of `make e2e-real` only")
    target = tmp_path_factory.mktemp("pytorch")
    with training.unpacked(images.PYTORCH.archive, target):
        yield target


@pytest.fixture(scope="module")
def undisturbed(root: Path) -> tuple[LocalRun, float]:
    """A run without interruption, and its final loss."""
    run = LocalRun(root, "undisturbed", OPTIONS)
    run.start()
    codes, outputs = run.end()
    assert codes == [0] * RANKS, "\n".join(outputs)
    return run, training.final_loss(outputs[0])


def resumed(run: LocalRun, undisturbed: tuple[LocalRun, float]) -> str:
    """Start again, compare each loss with the undisturbed run, and return the output of the first process."""
    run.start()
    codes, outputs = run.end()
    assert codes == [0] * RANKS, "\n".join(outputs)
    reference, loss = undisturbed
    assert training.final_loss(outputs[0]) == pytest.approx(loss, rel=1e-5)
    expected = {step.number: step.loss for step in training.steps(reference.checkpoints)}
    for step in training.steps(run.checkpoints):
        assert step.loss == pytest.approx(expected[step.number], rel=1e-5), f"step {step.number}"
    return outputs[0]


def test_the_training_learns(undisturbed: tuple[LocalRun, float]) -> None:
    run, loss = undisturbed
    done = training.steps(run.checkpoints)
    assert [step.number for step in done] == list(range(1, 121))
    assert loss < done[0].loss / 2


def test_a_run_that_is_terminated_loses_no_step(
    root: Path, undisturbed: tuple[LocalRun, float]
) -> None:
    run = LocalRun(root, "terminated", OPTIONS)
    run.start()
    run.until_step(60)
    run.signal(signal.SIGTERM)
    codes, outputs = run.end()
    assert codes == [128 + signal.SIGTERM] * RANKS, "\n".join(outputs)
    assert "lost steps: 0" in resumed(run, undisturbed)


def test_a_run_that_is_killed_repeats_the_steps_since_its_checkpoint(
    root: Path, undisturbed: tuple[LocalRun, float]
) -> None:
    run = LocalRun(root, "killed", OPTIONS)
    run.start()
    run.until_step(60)
    run.signal(signal.SIGKILL)
    run.end()
    lost = training.last_step(run.checkpoints) - 50
    assert f"resumed after step 50; lost steps: {lost}" in resumed(run, undisturbed)


def test_torchrun_passes_sigterm_to_its_ranks(
    root: Path, undisturbed: tuple[LocalRun, float]
) -> None:
    run = LocalRun(root, "torchrun", OPTIONS)
    run.start_torchrun()
    run.until_step(60)
    run.signal(signal.SIGTERM)
    codes, outputs = run.end()
    assert codes != [0], "\n".join(outputs)
    assert "lost steps: 0" in resumed(run, undisturbed)
