"""Invariants of every entry of the ledger."""

from __future__ import annotations

from queuectl.domain.ledger import Entry, Intent, State, parked_state


def violations(entry: Entry) -> list[str]:
    """The broken invariants of one entry; empty for every entry that the state machine makes."""
    state, parked = entry.state, entry.parked
    queues = state in (State.PENDING, State.RESERVED, State.BACKOFF) or state.live
    rules = {
        "a live attempt has a placement": not state.live or entry.placement is not None,
        "a waiting workload has no placement": not state.waiting or entry.placement is None,
        "what was planned is known of an attempt only": entry.planned is None
        or entry.placement is not None,
        "Reserved means a lease": entry.lease is not None or state is not State.RESERVED,
        "a lease only in Reserved, or while it moves": entry.lease is None
        or state in (State.RESERVED, State.EVICTING),
        "Start is owed only by a live attempt": entry.intent is not Intent.START or state.live,
        "Stop is owed exactly while Evicting": (entry.intent is Intent.STOP)
        == (state is State.EVICTING),
        "Move is owed exactly by what waits and is to move": (entry.intent is Intent.MOVE)
        == (state.waiting and entry.queue_set is not None),
        "what runs or has ended is not moved": entry.queue_set is None
        or not (state.live or state is State.FINISHED),
        "only a priority that was set ends": entry.priority_until is None
        or entry.priority_set is not None,
        "a notice only while Evicting": entry.stop_at is None or state is State.EVICTING,
        "Backoff has an end": entry.requeue_at is not None or state is not State.BACKOFF,
        "what runs or has ended is not to be requeued": entry.requeue_at is None
        or not (state.live or state is State.FINISHED),
        "a finish time exactly when finished": (entry.finished_at is not None)
        == (state is State.FINISHED),
        "a workload that queues or runs has no hold and no gate": not queues
        or (parked is None and not entry.gates),
        "Held by a user or by a gate": state is not State.HELD
        or parked is not None
        or bool(entry.gates),
        "held or deactivated for its reason": parked is None
        or state in (parked_state(parked), State.EVICTING, State.FINISHED),
        "Deactivated for a reason": state is not State.DEACTIVATED or parked is not None,
        "only what was ready can have lost it": entry.unready_since is None
        or state is State.RUNNING,
        "a live attempt was not evicted": not state.live or entry.evicted_for is None,
        "another place in the order only while it waits": entry.requeued_at is None
        or not state.live,
    }
    return [text for text, holds in rules.items() if not holds]
