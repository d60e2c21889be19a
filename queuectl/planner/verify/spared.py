"""What a dry run says: who would have been evicted for not using his GPUs, and for whom."""

from __future__ import annotations

from collections.abc import Iterator

from queuectl.domain.plan import Preemption, PreemptionReason
from queuectl.domain.queues import ReclaimMode
from queuectl.planner.verify.books import Books
from queuectl.planner.verify.idle import does_not_yield
from queuectl.planner.verify.report import Rule, Violation
from queuectl.planner.verify.victims import shielded


def check_spared(books: Books) -> Iterator[Violation]:
    """Each gang that a dry run names: it runs and stays, is idle, and is named once, for a gang that goes on waiting."""
    seen: set[str] = set()
    for spared in books.plan.spared:
        why = _not_spared(books, spared)
        if why is None and spared.victim in seen:
            why = "named twice"
        seen.add(spared.victim)
        if why is not None:
            text = f"said to be spared by {spared.preemptor}: {why}"
            yield Violation(Rule.VICTIM, spared.victim, text)


def _not_spared(books: Books, spared: Preemption) -> str | None:
    victim = books.running.get(spared.victim)
    taker = books.pending.get(spared.preemptor)
    if victim is None or spared.victim in books.gone_after:
        return "it does not run, or leaves"
    refusal = books.refused.get(spared.preemptor)
    if taker is None or refusal is None or refusal.lease is not None:
        return "the other does not go on waiting"
    queue = books.queue_of(victim.workload)
    if queue is not None and queue.idle_reclaim.mode is ReclaimMode.OFF:
        return f"idleReclaim of {queue.name} is Off"
    if spared.reason != PreemptionReason.IDLE:
        return f"the reason is {spared.reason}"
    return shielded(books, victim, spared.reason) or does_not_yield(books, taker.workload, victim)
