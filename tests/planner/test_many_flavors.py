"""Gangs with more choices of flavors than are judged one by one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import pytest

from queuectl.domain.plan import Plan, Proof
from queuectl.domain.quantity import GPU
from queuectl.domain.queues import (
    Fungibility,
    QueueingStrategy,
    ResourceFlavor,
    WhenCan,
    WithinClusterQueue,
)
from queuectl.domain.reasons import Code
from queuectl.domain.snapshot import Pending, Snapshot
from queuectl.domain.workload import PodSet, Workload
from queuectl.planner import StopSignal, plan
from queuectl.planner.problem import flavors
from queuectl.planner.search.choice_walk import ChoiceWalk
from queuectl.planner.search.flavor_choice import FlavorChooser
from queuectl.planner.verify import verify
from tests.planner.build import NOW, gang, holding, node, podset, queue, with_gpus, world
from tests.planner.oracle_fit import ANYWHERE, Oracle

NEVER = WithinClusterQueue.NEVER


def clusters(
    free: Mapping[str, int],
    *pending: Workload | Pending,
    size: int = 64,
    priority: int = 9,
    strategy: QueueingStrategy = QueueingStrategy.BEST_EFFORT_FIFO,
    within: WithinClusterQueue = WithinClusterQueue.LOWER_PRIORITY,
) -> Snapshot:
    """One node of each flavor, with this number of free GPUs; a gang of this priority has the others."""
    return world(
        [node(f"node-{f}", gpu=size, cpu=1000, pods=1000, labels={"model": f}) for f in free],
        pending,
        [
            holding(
                gang(f"on-{f}", podset(gpu=size - left), priority=priority),
                {f"node-{f}": 1},
                flavor=f,
                started_at=NOW - 100,
            )
            for f, left in free.items()
            if left < size
        ],
        queue(flavors=list(free), strategy=strategy, within=within),
        flavors=[ResourceFlavor(f, (("model", f),), topology="gpus") for f in free],
    )


def of_sizes(*gpus: int, uid: str = "many", queued_at: float = 0.0) -> Workload:
    """A gang with one pod in each podset, which requests this number of GPUs."""
    podsets = [podset(f"p{number:03}", gpu=size) for number, size in enumerate(gpus)]
    return gang(uid, *podsets, queued_at=queued_at)


def given(made: Plan, uid: str = "many") -> list[str]:
    """The flavor of each podset of a gang that starts."""
    [started] = [each for each in made.admitted if each.uid == uid]
    return [placed.flavors[GPU] for placed in started.placement.podsets]


@pytest.mark.parametrize(("podsets", "names"), [(8, "abc"), (13, "ab"), (32, "abc"), (128, "ab")])
def test_a_gang_starts_on_the_last_flavor_if_the_others_are_full(podsets: int, names: str) -> None:
    free = dict.fromkeys(names, 0) | {names[-1]: 128}
    snapshot = clusters(free, of_sizes(*[1] * podsets), size=128)
    made = plan(snapshot)
    assert given(made) == [names[-1]] * podsets
    assert made.proof is Proof.OPTIMAL
    assert verify(snapshot, made) == ()


def test_the_first_podsets_have_the_preferred_flavor_as_far_as_it_is_free() -> None:
    snapshot = clusters({"a": 5, "b": 6, "c": 9}, of_sizes(*[1] * 20))
    assert given(plan(snapshot)) == [*"a" * 5, *"b" * 6, *"c" * 9]


def test_a_podset_for_which_a_flavor_is_too_small_leaves_it_to_those_behind() -> None:
    snapshot = clusters({"a": 4, "b": 40}, of_sizes(6, 3, 2, *[6] * 4, 1, 3, 2))
    assert given(plan(snapshot)) == ["b", "a", *"b" * 5, "a", "b", "b"]


def test_a_podset_with_one_flavor_has_its_place_before_those_that_prefer_it() -> None:
    """All choices of the others would have to be tried if the last podset were placed last."""
    only = podset("z", gpu=8, select={"model": "a"})
    many = of_sizes(*range(1, 11))
    snapshot = clusters({"a": 8, "b": 60}, replace(many, podsets=(*many.podsets, only)))
    assert given(plan(snapshot)) == [*"b" * 10, "a"]


def test_quota_decides_as_nodes_do() -> None:
    snapshot = clusters({"a": 64, "b": 64}, of_sizes(*[2] * 12))
    quotas = with_gpus(queue(flavors=["a", "b"]), {"a": 5, "b": 20})
    config = replace(snapshot.config, cluster_queues={"main": quotas})
    assert given(plan(replace(snapshot, config=config))) == [*"a" * 2, *"b" * 10]


@pytest.mark.parametrize(
    ("sizes", "gets", "proof"),
    [([1] * 12, {"b"}, Proof.OPTIMAL), (range(1, 13), {"a", "b"}, Proof.FEASIBLE)],
    ids=["the last choice borrows nothing", "a limit ends the search before it"],
)
def test_choices_that_borrow_are_passed_over_until_a_limit(
    sizes: Sequence[int], gets: set[str], proof: Proof
) -> None:
    snapshot = clusters({"a": 100, "b": 100}, of_sizes(*sizes), size=100)
    own, lender = queue(flavors=["a", "b"]), queue("lender", flavors=["a", "b"])
    tries = Fungibility(when_can_borrow=WhenCan.TRY_NEXT_FLAVOR)
    queues = {
        "main": replace(with_gpus(own, {"a": 0, "b": 100}), cohort="all", fungibility=tries),
        "lender": replace(with_gpus(lender, {"a": 100, "b": 0}), cohort="all"),
    }
    config = replace(snapshot.config, cluster_queues=queues)
    made = plan(replace(snapshot, config=config))
    assert set(given(made)) <= gets
    assert made.admitted[0].proof is proof


@pytest.mark.parametrize("within", [NEVER, WithinClusterQueue.LOWER_PRIORITY])
def test_a_gang_that_fits_nowhere_now_is_refuted(within: WithinClusterQueue) -> None:
    made = plan(clusters({"a": 10, "b": 11}, of_sizes(*[2] * 11), within=within))
    [refused] = made.pending
    assert (refused.reasons[0].code, refused.proof) == (
        Code.TOPOLOGY_PLACEMENT_FAILED,
        Proof.OPTIMAL,
    )


def test_a_gang_waits_that_can_fit_later_behind_the_first_choices() -> None:
    """The first choices never fit, because of their first podset."""
    snapshot = clusters({"a": 8, "b": 0}, of_sizes(60, *[1] * 9))
    quotas = with_gpus(queue(flavors=["a", "b"]), {"a": 50, "b": 200})
    config = replace(snapshot.config, cluster_queues={"main": quotas})
    [refused] = plan(replace(snapshot, config=config)).pending
    assert not refused.reasons[0].never_fits
    assert refused.proof is Proof.OPTIMAL


def test_victims_are_found_behind_the_first_choices() -> None:
    snapshot = clusters({"a": 0, "b": 64}, of_sizes(*[4] * 12), size=64)
    low = holding(
        gang("low", podset(gpu=60), priority=-1), {"node-b": 1}, flavor="b", started_at=NOW - 50
    )
    made = plan(replace(snapshot, admitted=(*snapshot.admitted, low)))
    assert [victim.victim for victim in made.preempted] == ["low"]
    [waits] = made.pending
    assert waits.lease is not None
    assert {placed.flavors[GPU] for placed in waits.lease.placement.podsets} == {"b"}


class TestStrictFifo:
    STRICT = QueueingStrategy.STRICT_FIFO

    def head(self, model: str) -> Workload:
        return gang("head", podset(gpu=60, select={"model": model}), queued_at=1.0)

    def test_a_gang_passes_a_head_on_flavors_that_the_head_cannot_use(self) -> None:
        many = of_sizes(*[1] * 12, queued_at=2.0)
        snapshot = clusters({"a": 20, "b": 20}, self.head("a"), many, strategy=self.STRICT)
        assert given(plan(snapshot)) == ["b"] * 12

    def test_it_holds_back_the_gangs_behind_it_on_all_of_its_flavors(self) -> None:
        many = of_sizes(*[4] * 12, queued_at=1.0)
        behind = gang("behind", podset(gpu=1, select={"model": "b"}), queued_at=2.0)
        made = plan(clusters({"a": 2, "b": 20}, many, behind, strategy=self.STRICT))
        assert [refused.uid for refused in made.pending] == ["many", "behind"]

    def test_if_it_never_fits_it_holds_back_no_gang(self) -> None:
        never = of_sizes(*[1] * 11, 65, queued_at=1.0)
        behind = gang("behind", podset(gpu=1), queued_at=2.0)
        made = plan(clusters({"a": 20, "b": 20}, never, behind, strategy=self.STRICT))
        [refused] = made.pending
        assert (refused.reasons[0].code, refused.proof) == (Code.SHAPE_NEVER_FITS, Proof.OPTIMAL)
        assert [started.uid for started in made.admitted] == ["behind"]

    def test_if_all_its_podsets_together_never_fit_it_holds_back_no_gang(self) -> None:
        never = of_sizes(*[11] * 12, queued_at=1.0)
        behind = gang("behind", podset(gpu=1), queued_at=2.0)
        made = plan(clusters({"a": 20, "b": 20}, never, behind, strategy=self.STRICT))
        assert [refused.reasons[0].never_fits for refused in made.pending] == [True]


# Brute force: each choice alone, in order.


def random_snapshot(seed: int) -> Snapshot:
    rng = random.Random(seed)
    names = "abc"[: rng.choice((2, 2, 3))]
    podsets = tuple(
        podset(
            f"p{number}",
            rng.choice((1, 1, 2, 3)),
            gpu=rng.choice((1, 1, 2, 3)),
            select={"model": rng.choice(names)} if rng.random() < 0.1 else None,
            group="g" if number < 2 and seed % 4 == 0 else None,
        )
        for number in range(rng.choice((2, 3, 4)))
    )
    nodes = [
        node(f"n{number}", gpu=rng.choice((2, 3, 4, 6)), labels={"model": rng.choice(names)})
        for number in range(rng.choice((2, 3, 4)))
    ]
    quotas = {name: rng.choice((2, 4, 6, 100)) for name in names}
    return world(
        nodes,
        [gang("many", *podsets)],
        (),
        with_gpus(queue(flavors=list(names)), quotas),
        flavors=[ResourceFlavor(f, (("model", f),), topology="gpus") for f in names],
    )


def first_that_fits(snapshot: Snapshot) -> list[str] | None:
    """The flavor of each podset in the first choice that fits."""
    oracle = Oracle(snapshot)
    [entry] = snapshot.pending
    main = snapshot.config.cluster_queues["main"]
    podsets = entry.workload.podsets
    for chosen in product(*(list(oracle.flavor_choices(main, each)) for each in podsets)):
        if oracle.fits([list(oracle.ways(entry, step=ANYWHERE, only=chosen))]):
            return [each[GPU] for each in chosen]
    return None


@pytest.mark.parametrize("part", range(4))
def test_the_first_choice_that_fits_is_found_as_by_brute_force(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flavors, "_LISTED", 1)
    seen = Counter[str]()
    for seed in range(part, 400, 4):
        snapshot = random_snapshot(seed)
        expected, made = first_that_fits(snapshot), plan(snapshot)
        assert (given(made) if made.admitted else None) == expected, seed
        assert made.proof is Proof.OPTIMAL, seed
        seen["fits" if expected else "waits"] += 1
        seen["mixed"] += expected is not None and len(set(expected)) > 1
        seen["first"] += expected is not None and set(expected) == {"a"}
    assert min(seen["fits"], seen["waits"], seen["mixed"], seen["first"]) >= 5


# Work.


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many podset groups are judged: in choices, and in parts of them."""
    counts = Counter[str]()
    fit, refuted = FlavorChooser.fit, ChoiceWalk._is_refuted

    def counted_fit(self, request):
        counts["choices"] += len(request.podset_groups)
        return fit(self, request)

    def counted_part(self, parts):
        counts["parts"] += len(parts)
        return refuted(self, parts)

    monkeypatch.setattr(FlavorChooser, "fit", counted_fit)
    monkeypatch.setattr(ChoiceWalk, "_is_refuted", counted_part)
    return counts


def uneven(podsets: int) -> Sequence[PodSet]:
    return [podset(f"p{k}", 1 + k % 3, gpu=1 + k % 7, cpu=1 + k) for k in range(podsets)]


@pytest.mark.parametrize("podsets", [12, 32, 128])
def test_the_work_for_a_gang_on_a_full_cluster_does_not_grow_with_its_choices(
    podsets: int, judged: Counter[str]
) -> None:
    made = plan(clusters({"a": 8, "b": 8}, gang("many", *uneven(podsets)), size=1000))
    [refused] = made.pending
    assert refused.proof is Proof.OPTIMAL
    assert judged.total() <= 512 + 4 * 2 * podsets


def hard(podsets: int, budget: int) -> Snapshot:
    """Sums do not refute it, and no choice fits: the pods of odd sizes leave one GPU of each node idle, and none is to spare."""
    sizes = [6 + 2 * number for number in range(podsets)]
    half = sum(sizes) // 2
    free = {"a": half - half % 2 + 1, "b": sum(sizes) - half + half % 2 - 1}
    many = of_sizes(*sizes)
    return clusters(free, Pending(many, budget=budget), size=10_000, within=NEVER)


def test_a_limit_ends_the_search_and_grows_after_it(judged: Counter[str]) -> None:
    worked = []
    for budget in (0, 1):
        judged.clear()
        [refused] = plan(hard(16, budget)).pending
        assert (refused.reasons[0].code, refused.proof) == (Code.UNDECIDED, Proof.UNDECIDED)
        worked.append(judged.total())
    limit = hard(16, 0).limits.search_steps
    assert limit / 2 < worked[0] <= limit + 512 + 32
    assert 3 * limit < worked[1] <= 4 * limit + 512 + 32


def test_a_stop_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, parts = StopSignal(), Counter[str]()
    refuted = ChoiceWalk._is_refuted

    def stopping(self, some):
        parts["asked"] += 1
        if parts["asked"] == 100:
            stop.stop()
        return refuted(self, some)

    monkeypatch.setattr(ChoiceWalk, "_is_refuted", stopping)
    made = plan(hard(16, 0), stop=stop)
    assert made.cut
    assert not made.admitted
    assert parts["asked"] <= 110
