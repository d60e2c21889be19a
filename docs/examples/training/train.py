"""Train a small model on several processes, and resume it from its latest checkpoint.

    python3 train.py --checkpoint /checkpoints/pretrain

Each process reads MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK. torchrun sets them. A checkpoint holds the model, the optimizer,
the scheduler, the position of the sampler, and the state of the random number generator of each rank. A resumed run has the same
losses as a run without interruption.

The processes save a checkpoint every --save-every steps, after a notice of queuectl, and after SIGTERM. They end with exit code 143
after SIGTERM. Exit code 0 would mark the pod as succeeded.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from notice import Notice
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SEED = 18
TERMINATED = 128 + signal.SIGTERM


class ResumableSampler(DistributedSampler[Any]):
    """The samples of one rank in random order, from a position that a checkpoint can hold."""

    position = 0

    def __iter__(self) -> Iterator[Any]:
        for index in list(super().__iter__())[self.position :]:
            self.position += 1
            yield index

    def next_epoch(self) -> None:
        """Begin the next epoch, which has another order."""
        self.position = 0
        self.set_epoch(self.epoch + 1)

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.set_epoch(state["epoch"])
        self.position = state["position"]


class Trainer:
    """The state of a training on one rank, and the files of all ranks."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.manual_seed(SEED)
        data = _data(options.samples)
        self.options, self.rank, self.step = options, dist.get_rank(), 0
        self.network = nn.Sequential(
            nn.Linear(32, options.width),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(options.width, options.width),
            nn.GELU(),
            nn.Linear(options.width, 1),
        )
        self.model = DistributedDataParallel(self.network)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, options.steps)
        self.sampler = ResumableSampler(data, shuffle=True, seed=SEED, drop_last=True)
        # A loader without a generator of its own draws from the global one each time that it starts.
        self.loader = DataLoader(
            data,
            batch_size=options.batch,
            sampler=self.sampler,
            drop_last=True,
            generator=torch.Generator(),
        )
        self.data = data
        self.stateful = {
            "model": self.network,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "sampler": self.sampler,
        }
        self._warm_up()
        torch.manual_seed(SEED + 1 + self.rank)  # each rank drops other units

    def _warm_up(self) -> None:
        """Run one backward pass without a step. The first pass decides the order in which gradients are summed.

        Without it, the first step of a resumed run would use another order, and the losses would differ in their last digits.
        """
        self.model(self.data.tensors[0][: self.options.batch]).sum().backward()
        self.optimizer.zero_grad()

    # ---- checkpoints

    @property
    def checkpoint(self) -> Path:
        return self.options.checkpoint / "latest.pt"

    @property
    def losses(self) -> Path:
        return self.options.checkpoint / "losses.csv"

    def save(self) -> None:
        """Replace the checkpoint. All ranks call it after the same step."""
        random: list[Any] | None = [None] * dist.get_world_size() if self.rank == 0 else None
        dist.gather_object(torch.get_rng_state(), random)
        if self.rank == 0:
            state = {name: part.state_dict() for name, part in self.stateful.items()}
            written = self.checkpoint.with_suffix(".new")
            with written.open("wb") as file:
                torch.save(state | {"step": self.step, "random": random}, file)
                os.fsync(file.fileno())
            written.replace(self.checkpoint)  # a reader finds the old checkpoint or the new one
            print(f"saved step {self.step}", flush=True)
        dist.barrier()

    def resume(self) -> None:
        """Continue after the step of the checkpoint, if there is one."""
        if not self.checkpoint.exists():
            return
        state = torch.load(self.checkpoint, map_location="cpu")
        for name, part in self.stateful.items():
            part.load_state_dict(state[name])
        torch.set_rng_state(state["random"][self.rank])
        self.step = state["step"]
        if self.rank == 0:
            lost = self._last_step() - self.step
            print(f"resumed after step {self.step}; lost steps: {lost}", flush=True)

    def _last_step(self) -> int:
        """The last step of the run before. It is later than the checkpoint if that run had no time to save."""
        lines = self.losses.read_text().split() if self.losses.exists() else []
        return int(lines[-1].split(",")[1]) if lines else 0

    # ---- training

    def train(self, notice: Notice, signals: Signals) -> End:
        """Train up to the last step, or up to a checkpoint after which the process ends."""
        for inputs, targets in self._batches():
            loss = nn.functional.mse_loss(self.model(inputs), targets)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.step += 1
            # One reduction gives all ranks the mean loss and the same decision.
            reduced = torch.tensor(
                [loss.item(), signals.terminated, notice.requested], dtype=torch.float64
            )
            dist.all_reduce(reduced)
            mean, terminated, requested = (reduced / dist.get_world_size()).tolist()
            self._record(mean)
            if terminated or requested or self.step % self.options.save_every == 0:
                self.save()
                notice.saved(ready=requested > 0)
            if terminated:
                return End.TERMINATED
            if requested:
                return End.NOTICED
        return End.FINISHED

    def _batches(self) -> Iterator[Any]:
        while True:
            for batch in self.loader:
                if self.step == self.options.steps:
                    return
                yield batch
            self.sampler.next_epoch()

    def _record(self, loss: float) -> None:
        if self.rank == 0:
            with self.losses.open("a") as file:
                file.write(f"{time.time():.3f},{self.step},{loss:.17g}\n")

    @torch.no_grad()
    def final_loss(self) -> float:
        """The loss over all samples, without dropout."""
        self.network.eval()
        inputs, targets = self.data.tensors
        return float(nn.functional.mse_loss(self.network(inputs).double(), targets.double()))


class Signals:
    """Whether SIGTERM was received. The step in progress ends first."""

    def __init__(self) -> None:
        self.terminated = False
        signal.signal(signal.SIGTERM, self._receive)

    def _receive(self, *_: object) -> None:
        self.terminated = True

    def wait(self) -> None:
        """Wait for SIGTERM."""
        while not self.terminated:
            time.sleep(0.1)


class End(Enum):
    """Why the training of this process ended. For each value but the first, a checkpoint is saved."""

    FINISHED = "the last step"
    TERMINATED = "SIGTERM"
    NOTICED = "a notice"


def _data(samples: int) -> TensorDataset:
    """Inputs, and the outputs of a network with random weights."""
    inputs = torch.randn(samples, 32)
    with torch.no_grad():
        hidden = torch.tanh(inputs @ torch.randn(32, 64) / 4)
        return TensorDataset(inputs, hidden @ torch.randn(64, 1) / 8)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small model on several processes.")
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of this training")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--samples", type=int, default=16384)
    parser.add_argument("--batch", type=int, default=256, help="samples of a step on each rank")
    parser.add_argument("--width", type=int, default=256)
    return parser.parse_args()


def main() -> int:
    """Train on this rank.

    Returns:
        The exit code.
    """
    options, signals = _options(), Signals()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    place = os.environ.get("NODE_NAME", "this machine")
    print(
        f"rank {dist.get_rank()} of {dist.get_world_size()} on {place}, master {address}",
        flush=True,
    )
    options.checkpoint.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(options)
    trainer.resume()
    notice = Notice(os.environ.get("JOB") if trainer.rank == 0 else None)
    end = trainer.train(notice, signals)
    if end is End.FINISHED:
        if trainer.rank == 0:
            print(f"final loss: {trainer.final_loss():.17g}", flush=True)
        dist.barrier()  # no rank ends while another one uses its connections
        return 0
    print(f"rank {trainer.rank} ends after step {trainer.step}: {end.value}", flush=True)
    if end is End.NOTICED:
        signals.wait()  # queuectl suspends the job now; a pod that ends earlier could be replaced
    return TERMINATED


if __name__ == "__main__":
    sys.exit(main())
