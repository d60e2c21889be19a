"""What a gang's ClusterQueue would borrow for it, and may take back from others for it."""

from __future__ import annotations

from typing import TypeAlias

from queuectl.domain.queues import ReclaimWithinCohort
from queuectl.planner.capacity.state import State
from queuectl.planner.problem.request import GangRequest
from queuectl.planner.quota.tree import FlavorResource

Heights: TypeAlias = tuple[int, ...]  # per podset, how far up the cohorts it borrows; 0 = not


def borrows(state: State, request: GangRequest) -> Heights:
    """How far up its cohorts each podset borrows, those before it charged already, in the tighter of the two views."""
    heights = [0] * len(request.flavors)
    if request.queue is None or state.later.quota.pools[request.queue].parent is None:
        return tuple(heights)
    charged_for = state.problem.snapshot.config.rules.charged
    charged: dict[FlavorResource, int] = {}
    for i, (podset, flavors) in enumerate(
        zip(request.pending.workload.podsets, request.flavors, strict=True)
    ):
        amounts = charged_for(podset.shape.requests)
        for resource, flavor in flavors.items():
            need = amounts[resource] * podset.count
            row = (flavor, resource)
            charged[row] = charged.get(row, 0) + need
            for use in (state.now.quota, state.later.quota):
                reach = use.reach(request.queue, row, charged[row])
                heights[i] = max(heights[i], reach.height if need else 0)
    return tuple(heights)


def entitled(state: State, request: GangRequest) -> bool:
    """Whether what a demand lacks of quota is its ClusterQueue's to take from running gangs.

    Kueue's rule: what fits the queue's own nominal quota, or that of a cohort below the root, is; more than that only
    where the queue may preempt to borrow, or where shares decide.
    """
    queue, use = request.queue, state.later.quota
    if queue is None:
        return False
    config = state.problem.snapshot.config
    policy = config.cluster_queues[queue]
    reclaims = policy.reclaim_within_cohort is not ReclaimWithinCohort.NEVER
    if policy.preempts_to_borrow or (config.rules.fair_sharing and reclaims):
        return True
    nominal = state.nominal(queue)
    return all(
        need <= max(nominal.get(row, 0), use.left(queue, row))
        or use.reach(queue, row, need).parent is not None
        for row, need in request.charges.items()
    )
