"""Quota for a time: what acts when, and what it makes of a queue's quota."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.quantity import CPU, GPU
from queuectl.domain.queues import (
    ClusterQueue,
    FlavorQuotas,
    QueueConfig,
    QuotaOverride,
    ResourceGroup,
    in_force,
    next_boundary,
)

QUOTAS = FlavorQuotas("h100", {GPU: 64, CPU: 1000}, lending={GPU: 32})
QUEUE = ClusterQueue("team-a", (ResourceGroup((GPU, CPU), (QUOTAS,)),), cohort="all")
CONFIG = QueueConfig(7, cluster_queues={"team-a": QUEUE, "team-b": replace(QUEUE, name="team-b")})
BASE = QuotaOverride("base", "team-a", "h100", GPU, begins=100.0, ends=200.0)
MORE = replace(BASE, name="more", add=16)
LESS = replace(BASE, name="less", add=-24)
INSTEAD = replace(BASE, name="instead", nominal=128)
LATER = replace(BASE, name="later", nominal=96, begins=150.0)


def under(*overrides: QuotaOverride) -> QueueConfig:
    return replace(CONFIG, overrides={override.name: override for override in overrides})


def quota(config: QueueConfig, queue: str = "team-a", resource: str = GPU) -> int:
    (group,) = config.cluster_queues[queue].groups
    return group.flavors[0].nominal[resource]


@pytest.mark.parametrize(
    ("overrides", "now", "gpus"),
    [
        pytest.param((), 150.0, 64, id="none"),
        pytest.param((MORE,), 99.9, 64, id="it has not begun"),
        pytest.param((MORE,), 100.0, 80, id="it begins"),
        pytest.param((MORE,), 199.9, 80, id="it still acts"),
        pytest.param((MORE,), 200.0, 64, id="it is over"),
        pytest.param((LESS,), 150.0, 40, id="less for a time"),
        pytest.param((replace(LESS, add=-99),), 150.0, 0, id="never below 0"),
        pytest.param((MORE, LESS), 150.0, 56, id="what is added adds up"),
        pytest.param((INSTEAD,), 150.0, 128, id="instead of what is stated"),
        pytest.param((INSTEAD, MORE), 150.0, 144, id="and more on top of it"),
        pytest.param((INSTEAD, LATER), 149.9, 128, id="the first one alone"),
        pytest.param((INSTEAD, LATER), 150.0, 96, id="the override that began last applies"),
        pytest.param((replace(MORE, flavor="a100"),), 150.0, 64, id="of another flavor"),
        pytest.param((replace(MORE, resource=CPU),), 150.0, 64, id="of another resource"),
        pytest.param(
            (replace(MORE, cluster_queue="gone"),), 150.0, 64, id="of a queue that is not"
        ),
    ],
)
def test_what_a_queue_owns(overrides: tuple[QuotaOverride, ...], now: float, gpus: int) -> None:
    config = in_force(under(*overrides), now)
    assert quota(config) == gpus
    assert quota(config, "team-b") == 64
    assert config.revision == 7
    assert in_force(config, now) is config, "it is worked in once"


def test_a_queue_lends_no_more_than_it_owns_in_the_meantime() -> None:
    def lends(override: QuotaOverride) -> int:
        (group,) = in_force(under(override), 150.0).cluster_queues["team-a"].groups
        return group.flavors[0].lending[GPU]

    assert lends(replace(BASE, nominal=8)) == 8
    assert lends(MORE) == 32


@pytest.mark.parametrize(
    ("now", "boundary"), [(0.0, 100.0), (100.0, 150.0), (150.0, 200.0), (200.0, None)]
)
def test_the_next_boundary_is_the_next_begin_or_end(now: float, boundary: float | None) -> None:
    assert next_boundary(under(MORE, LATER), now) == boundary


OVERRIDES = st.builds(
    lambda number, begins, length, add, nominal: replace(
        BASE, name=f"o{number}", begins=begins, ends=begins + length, add=add, nominal=nominal
    ),
    st.integers(0, 3),
    st.integers(0, 20).map(float),
    st.integers(1, 20).map(float),
    st.integers(-99, 99),
    st.none() | st.integers(0, 99),
)


@given(st.lists(OVERRIDES, max_size=4), st.integers(0, 40), st.integers(0, 40))
def test_between_two_boundaries_nothing_changes(
    overrides: list[QuotaOverride], one: int, other: int
) -> None:
    config = under(*overrides)
    now, later = sorted((float(one), float(other)))
    boundary = next_boundary(config, now)
    if boundary is None or later < boundary:
        assert quota(in_force(config, now)) == quota(in_force(config, later)) >= 0
