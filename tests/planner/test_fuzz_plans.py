"""Generated snapshots with all features: the plan of each passes the verifier. ``python -m tests.planner.fuzz_plans`` plans more of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queuectl.domain.plan import Plan
from queuectl.domain.snapshot import Snapshot
from tests.planner import fuzz_plans
from tests.planner.build import gang, node, podset, world
from tests.planner.feature_counts import FEATURES, FeatureCounts, features_of
from tests.planner.fuzz_plans import complaints
from tests.planner.generate_features import snapshot_of

LATER = {"lease", "planned start"}  # only snapshots after a plan have them
SEEDS = range(134, 172)


@pytest.fixture(scope="module")
def generated() -> FeatureCounts:
    counts = FeatureCounts()
    for seed in range(600):
        counts.note(features_of(snapshot_of(seed)))
    return counts


def test_each_feature_and_each_pair_of_features_occurs(generated: FeatureCounts) -> None:
    assert generated.missing(FEATURES - LATER) == []


def test_no_feature_is_rare(generated: FeatureCounts) -> None:
    rare = {n: generated.single[n] for n in FEATURES - LATER if generated.single[n] < 60}
    assert rare == {}


def test_the_plans_of_generated_snapshots_pass_the_verifier() -> None:
    """Two cycles of each seed."""
    counts = FeatureCounts()
    found = [text for seed in SEEDS for text in complaints(seed, counts, most=2)]
    assert found == []
    assert {name: counts.single[name] for name in LATER if not counts.single[name]} == {}


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(940_007, id="a gang with a planned start is held for its nodes, and gets quota that an ended lease returns"),
        pytest.param(3_313, id="an added pod that waits for its checks ends with its gang"),
        pytest.param(10_736, id="a gang with a reservation waits behind one that exceeds a Budget, and holds back no other"),
        pytest.param(12_346, id="pods of two elastic gangs that are equal wait for the lower ranks of their own gangs"),
        pytest.param(13_659, id="no start is planned after a gang that waits for its nodes without a limit"),
        pytest.param(20_001, id="a Reservation that evicts takes no nodes on which a gang has a lease"),
        pytest.param(20_155, id="a Budget pays again for a reservation that has expired"),
    ],
)  # fmt: skip
def test_the_plan_of_this_seed_passes_the_verifier(seed: int) -> None:
    assert list(complaints(seed, FeatureCounts(), most=3)) == []


def test_a_plan_that_the_verifier_refuses_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that forgets its gang, as an example."""
    snapshot = world([node("n0", gpu=8)], [gang("g", podset(gpu=8))])

    def cycles(_seed: int, _most: int) -> Iterator[tuple[Snapshot, Plan]]:
        yield snapshot, Plan()

    monkeypatch.setattr(fuzz_plans, "cycles_of", cycles)
    assert list(complaints(7, FeatureCounts())) == [
        "seed 7 cycle 0: Partition g: is 0 times in the plan"
    ]
