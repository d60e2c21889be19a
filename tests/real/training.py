"""The training of docs/examples/training: its image, its program on this machine, and the records of its runs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from queuectl.localcluster.client import wait_until
from tests.real.images import PYTORCH

EXAMPLES: Final = Path(__file__).parents[2] / "docs" / "examples" / "training"
PROGRAM: Final = ("train.py", "notice.py")

RANKS: Final = 4
SECONDS: Final = 240.0
"""Seconds until a wait for a training fails. It is not a performance goal."""


@dataclass(frozen=True)
class Step:
    """A line of losses.csv.

    Attributes:
        at: Unix time of the end of the step, in seconds.
        number: the number of the step, from 1.
        loss: the mean loss of all ranks.
    """

    at: float
    number: int
    loss: float


def steps(checkpoints: Path) -> list[Step]:
    """The steps in a folder of checkpoints, in the order of their times; steps that were repeated are there twice."""
    path = checkpoints / "losses.csv"
    lines = [line.split(",") for line in path.read_text().split()] if path.exists() else []
    return [Step(float(at), int(number), float(loss)) for at, number, loss in lines]


def last_step(checkpoints: Path) -> int:
    """The number of the last step; 0 before the first."""
    found = steps(checkpoints)
    return found[-1].number if found else 0


def final_loss(output: str) -> float:
    """The final loss that rank 0 prints."""
    (line,) = (line for line in output.splitlines() if line.startswith("final loss: "))
    return float(line.removeprefix("final loss: "))


@contextmanager
def unpacked(archive: Path, target: Path) -> Iterator[None]:
    """The layer of an image with the program, in a folder with the file systems that programs expect."""
    with tarfile.open(archive) as outer:
        layer = max(outer.getmembers(), key=lambda member: member.size)
        content = outer.extractfile(layer)
        assert content is not None
        with tarfile.open(fileobj=content) as files:
            files.extractall(target, filter="fully_trusted")
    (target / "program").mkdir()
    for name in PROGRAM:
        shutil.copy(EXAMPLES / name, target / "program")
    mounts = [target / name for name in ("proc", "dev")]
    for mount in mounts:
        subprocess.run(["mount", "--rbind", f"/{mount.name}", mount], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--recursive", "--lazy", *mounts], check=True)


@dataclass
class LocalRun:
    """Processes of the program in an unpacked image, one for each rank.

    Attributes:
        root: the unpacked image.
        name: the folder of the checkpoints.
        options: further options of the program.
    """

    root: Path
    name: str
    options: Sequence[str] = ()
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints" / self.name

    def start(self) -> None:
        """Start a process for each rank, with the environment that a pod has."""
        self.processes = [self._process(["python3"], RANK=str(rank)) for rank in range(RANKS)]

    def start_torchrun(self) -> None:
        """Start torchrun, which starts the ranks."""
        command = ["python3", "-m", "torch.distributed.run", f"--nproc_per_node={RANKS}"]
        self.processes = [self._process(command)]

    def _process(self, command: Sequence[str], **environment: str) -> subprocess.Popen[str]:
        program = ["/program/train.py", f"--checkpoint=/checkpoints/{self.name}", *self.options]
        given = {
            "PATH": os.environ["PATH"],
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "WORLD_SIZE": str(RANKS),
            **dict(one.split("=", 1) for one in PYTORCH.environment),
            **environment,
        }
        return subprocess.Popen(
            ["chroot", str(self.root), *command, *program],
            env=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def until_step(self, number: int) -> None:
        """Wait until a step has ended."""
        wait_until(lambda: self._has_done(number), f"step {number}", SECONDS)

    def _has_done(self, number: int) -> bool:
        ended = [process for process in self.processes if process.poll() is not None]
        assert not ended, "\n".join(process.communicate()[0] for process in ended)
        return last_step(self.checkpoints) >= number

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to each process."""
        for process in self.processes:
            process.send_signal(number)

    def end(self) -> tuple[list[int], list[str]]:
        """Wait for the end. Returns the exit codes and the outputs, by rank."""
        outputs = [process.communicate(timeout=SECONDS)[0] for process in self.processes]
        return [process.returncode for process in self.processes], outputs
