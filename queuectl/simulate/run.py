"""One job in a simulation: when it waits, when it runs, and the work that it loses."""

from __future__ import annotations

from dataclasses import dataclass

from queuectl.simulate.trace import TraceJob


@dataclass(slots=True, eq=False)
class Run:
    """The progress of one job. Times and work are in seconds.

    Attributes:
        done: work that a checkpoint has saved, or that an end has completed.
        running_since: since when it runs; None while it does not.
        held_since: since when it holds GPUs; None while it holds none. A gang that lost a node holds GPUs and does not run.
        ran: for how long it has run, in all.
        held: GPU-seconds that it has held, in all.
        finished_at: None until it has ended.
        evictions: how often it was evicted.
        lost: GPU-seconds of work that evictions and failed nodes have cost.
    """

    job: TraceJob
    done: float = 0.0
    running_since: float | None = None
    held_since: float | None = None
    ran: float = 0.0
    held: float = 0.0
    finished_at: float | None = None
    evictions: int = 0
    lost: float = 0.0

    def start(self, now: float) -> float:
        """Run from now on. Returns the time of its end if nothing interrupts it."""
        assert self.running_since is None
        assert self.finished_at is None
        if self.held_since is None:
            self.held_since = now
        self.running_since = now
        left = self.job.duration - self.done
        if self.job.limit is not None:
            left = min(left, self.job.limit - self.ran)
        return now + max(left, 0.0)

    def interrupt(self, now: float) -> None:
        """Lose the work since the last checkpoint. It keeps its GPUs."""
        if self.running_since is None:
            return
        elapsed = now - self.running_since
        interval = self.job.checkpoint
        saved = elapsed - elapsed % interval if interval is not None else 0.0
        self.lost += (elapsed - saved) * self.job.gpus
        self.done += saved
        self.ran += elapsed
        self.running_since = None

    def evict(self, now: float) -> None:
        """Stop it. It holds nothing any more."""
        self.interrupt(now)
        self._give_back(now)
        self.evictions += 1

    def finish(self, now: float) -> None:
        """It has done its work, or has reached its limit."""
        assert self.running_since is not None
        self.ran += now - self.running_since
        self.done = self.job.duration
        self.running_since = None
        self._give_back(now)
        self.finished_at = now

    def work(self, now: float) -> float:
        """Seconds of its work that are done, the unsaved ones included; while it runs."""
        assert self.running_since is not None
        return self.done + now - self.running_since

    def saved_at(self, now: float) -> float | None:
        """The time of its last checkpoint in this attempt; None without one."""
        interval = self.job.checkpoint
        if interval is None or self.running_since is None:
            return None
        elapsed = now - self.running_since
        return now - elapsed % interval if elapsed >= interval else None

    def saves_at(self, now: float) -> float | None:
        """The time of its next checkpoint, later than ``now``; None without one."""
        interval = self.job.checkpoint
        if interval is None or self.running_since is None:
            return None
        return now + interval - (now - self.running_since) % interval

    @property
    def waited(self) -> float:
        """Seconds in which it was submitted and did not run; of a finished job."""
        assert self.finished_at is not None
        return self.completion - self.ran

    @property
    def completion(self) -> float:
        """Seconds from its submission to its end; of a finished job."""
        assert self.finished_at is not None
        return self.finished_at - self.job.submit

    def _give_back(self, now: float) -> None:
        assert self.held_since is not None
        self.held += (now - self.held_since) * self.job.gpus
        self.held_since = None
