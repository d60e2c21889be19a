"""Generated snapshots, from the generators of tests/planner: at least 2,000, each rule of the planner in a part of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from queuectl.domain.queues import ReclaimWithinCohort
from queuectl.domain.snapshot import MakeRoom, Snapshot
from tests.bench import tenants
from tests.bench.tenants import BLEND, SMALL, Line
from tests.corpus import variations
from tests.corpus.captured import Named
from tests.corpus.events import moving
from tests.corpus.variations import VARIATIONS, Variation
from tests.planner import generate, generate_cohorts, generate_histories, generate_moves
from tests.planner.build import gang, node, podset, world
from tests.planner.histories import simulate
from tests.planner.mixed import mixed
from tests.planner.story import Story
from tests.planner.test_idle_oracle import idlers
from tests.planner.test_repair_slices import accident as sliced_accident
from tests.planner.test_repair_victims import accident

PER_VARIATION: Final = 45
PER_PAIR: Final = 300
STORIES: Final = 90
PER_STORY: Final = 4
T = TypeVar("T")


def generated() -> Iterator[Named]:
    """All of them; the same ones each time, but for those that Hypothesis draws when its release changes."""
    yield from _plain()
    yield from _drawn()
    yield from _histories()
    yield from _varied()


def _plain() -> Iterator[Named]:
    makers: tuple[tuple[str, int, Callable[[int], Snapshot]], ...] = (
        ("crowded", 90, generate.crowded),
        ("crowded-mixed", 60, lambda n: generate.crowded(n, mixed=True)),
        ("mixed", 180, mixed),
        ("scattered", 40, generate_moves.scattered),
        ("tight", 30, generate_moves.tight),
        ("shaped", 60, generate_moves.shaped),
        ("idlers", 60, lambda n: idlers(n, fair=bool(n % 2), nodes=bool(n // 2 % 2))),
        ("accident", 90, lambda n: accident(n).snapshot),
        ("sliced-accident", 60, lambda n: sliced_accident(random.Random(n))),
        ("cohorts", 120, lambda n: generate_cohorts.cohorts(n, **_sorts(n))),
        ("contest", 200, lambda n: generate_cohorts.contest(n, **_sorts(n))),
    )
    for name, count, make in makers:
        yield from ((f"{name}/{number}", make(number)) for number in range(count))


def _sorts(number: int) -> dict[str, bool]:
    return {
        "fair": bool(number & 1),
        "nodes": bool(number & 2),
        "opting_out": bool(number & 4),
    }


def _drawn() -> Iterator[Named]:
    """By Hypothesis, which likes simple ones."""
    for number, snapshot in enumerate(_examples(generate.contested(), 60)):
        yield f"contested/{number}", snapshot
    for gangs in (1, 2, 4):
        for number, snapshot in enumerate(_examples(generate.snapshots(gangs=gangs), 40)):
            yield f"snapshots-{gangs}/{number}", snapshot


def _examples(strategy: SearchStrategy[T], count: int) -> list[T]:
    found: list[T] = []

    @seed(16)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(example: T) -> None:
        found.append(example)

    collect()
    return found


def _histories() -> Iterator[Named]:
    """Cycles of whole histories: what leaves, waits with a lease, is warned, or was evicted before."""
    stories: list[Story] = _examples(generate_histories.stories(), STORIES)
    for number, story in enumerate(stories):
        history = simulate(_with_reclaim_wait(story) if number % 2 else story)
        cycles = [c for c in history.cycles if c.snapshot.pending or c.snapshot.admitted]
        step = max(1, len(cycles) // PER_STORY)
        for at in range(0, len(cycles), step):
            yield f"history-{number}/{at}", cycles[at].snapshot


def _with_reclaim_wait(story: Story) -> Story:
    queues = tuple(
        replace(q, reclaim_patience=60.0)
        if q.reclaim_within_cohort is not ReclaimWithinCohort.NEVER
        else q
        for q in story.scene.queues
    )
    return replace(story, scene=replace(story.scene, queues=queues))


def _uneven(number: int) -> Snapshot:
    """Few free GPUs in racks of two blocks."""
    rng = random.Random(number)
    nodes = [
        node(f"n{i}", f"{rng.choice('xy')}/r{rng.randint(0, 2)}", gpu=rng.randint(0, 4))
        for i in range(rng.randint(2, 6))
    ]
    return world(nodes, [gang("g", podset(count=rng.randint(2, 7), gpu=1))])


_MAKERS: Final[tuple[Callable[[int], Snapshot], ...]] = (
    mixed,
    lambda n: generate_cohorts.contest(n, **_sorts(n)),
    mixed,
    generate.crowded,
    lambda n: generate_cohorts.contest(n, nodes=True, fair=bool(n & 4)),
    generate_moves.shaped,
    lambda n: generate_moves.tight(n) if n % 2 else generate_moves.scattered(n),
)
_FRAGMENTED: Final = (generate_moves.tight, generate_moves.scattered, generate_moves.shaped)
_OWN: Final[dict[Variation, tuple[Callable[[int], Snapshot], ...]]] = {
    variations.split_flavors: (mixed,),
    variations.fungible: (mixed,),
    variations.defragment: _FRAGMENTED,
    moving: (generate_moves.tight,),
    variations.balanced: (_uneven, generate_moves.shaped, generate.crowded),
    variations.evicts_within_nominal: (
        lambda n: generate_cohorts.cohorts(n, nodes=True),
        lambda n: generate_cohorts.contest(n, nodes=True),
    ),
    variations.idle_dry_run: (
        lambda n: generate_cohorts.contest(n, nodes=bool(n & 1)),
        generate.crowded,
    ),
    variations.reclaim_wait: (lambda n: generate_cohorts.contest(n, fair=bool(n & 1), nodes=bool(n & 2)),),
    variations.short_search: (
        lambda n: generate.crowded(n, mixed=True),
        lambda n: tenants.snapshot(Line(1, 4, 8, BLEND, 4, "rack", "", several=bool(n & 1)), n),
        lambda n: tenants.snapshot(Line(1, 2, 8, SMALL, 3, "rack", "", several=bool(n & 1)), n),
        lambda n: replace(generate_moves.tight(n), make_room=MakeRoom()),
        mixed,
    ),
}  # fmt: skip
"""The base of the rules that need a certain snapshot; other rules use any."""
_MORE: Final[dict[Variation, int]] = {
    moving: 400,
    variations.balanced: 120,
    variations.evicts_within_nominal: 150,
    variations.idle_dry_run: 180,
    variations.short_search: 100,
}
"""How often, of those that rarely show."""


def _varied() -> Iterator[Named]:
    """Each rule on what it shows on, then two rules at once."""
    for variation in VARIATIONS:
        makers = _OWN.get(variation, _MAKERS)
        name = variation.__name__.replace("_", "-")
        for number in range(_MORE.get(variation, PER_VARIATION)):
            snapshot = makers[number % len(makers)](10_000 + number)
            made = variation(snapshot, random.Random(f"{name} {number}"))
            if made is not snapshot:
                yield f"{name}/{number}", made
    for number in range(PER_PAIR):
        rng = random.Random(f"pair {number}")
        first, second = rng.sample(VARIATIONS, 2)
        snapshot = _MAKERS[number % len(_MAKERS)](20_000 + number)
        made = second(first(snapshot, rng), rng)
        names = "+".join(t.__name__.replace("_", "-") for t in (first, second))
        yield f"{names}/{number}", made
