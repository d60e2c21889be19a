"""Past use: what LocalQueues, ClusterQueues and users held lately, where what is older counts less.

With half-life ``h``, what was held ``t`` seconds ago counts ``0.5^(t/h)`` of what is held now. An account that has always
held 8 GPUs has a past use of 8 GPUs; one half-life after it gave them up, of 4. Amounts are those that quota is charged,
in the units of :mod:`queuectl.domain.quantity`; they are weighed only when they are compared (:func:`past_use`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf

from queuectl.domain.queues import WEIGHT_UNIT, QueueConfig
from queuectl.domain.rules import UsageFairness
from queuectl.domain.snapshot import PastUse


class AccountScope(StrEnum):
    """Type of an account."""

    LOCAL_QUEUE = "LocalQueue"
    CLUSTER_QUEUE = "ClusterQueue"
    USER = "User"


@dataclass(frozen=True, slots=True, order=True)
class PastUseAccount:
    """The LocalQueue, ClusterQueue or user. ``name`` of a LocalQueue is ``namespace/name``; neither part contains a slash."""

    scope: AccountScope
    name: str

    @classmethod
    def of_local_queue(cls, namespace: str, name: str) -> PastUseAccount:
        return cls(AccountScope.LOCAL_QUEUE, f"{namespace}/{name}")


@dataclass(frozen=True, slots=True)
class Used:
    """The past use of one account as it was at a time.

    Attributes:
        amounts: by resource.
        at: unix seconds.
    """

    account: PastUseAccount
    at: float
    amounts: Mapping[str, float] = field(default_factory=dict)

    def later(self, now: float, held: Mapping[str, float], rule: UsageFairness) -> Used:
        """The past use at ``now``, if the account held ``held`` since then. A clock that is set back has no effect."""
        if now <= self.at:
            return self
        fresh = rule.fresh(now - self.at)
        amounts = {name: amount * (1.0 - fresh) for name, amount in self.amounts.items()}
        return Used(self.account, now, _sum(amounts, held, fresh))

    def entered(self, amounts: Mapping[str, int], rule: UsageFairness) -> Used:
        """With what a start adds at once, on top of what is held from then on: as much as one sampling interval of it.

        So gangs that start right after each other do not look as if they had used nothing, and one that ends at once
        has used something. The order of one plan counts the same.
        """
        fresh = rule.fresh(rule.sampling)
        return replace(self, amounts=_sum(self.amounts, amounts, fresh))


def _sum(amounts: Mapping[str, float], more: Mapping[str, float], part: float) -> dict[str, float]:
    total = dict(amounts)
    for name, amount in more.items():
        total[name] = total.get(name, 0.0) + part * amount
    return total


def past_use(used: Iterable[Used], config: QueueConfig) -> PastUse:
    """As one number each, by the weights of resources and LocalQueues; LocalQueues that are not configured are left out."""
    rule = config.rules.usage_fairness
    if rule is None:
        return PastUse()
    local_queues: dict[tuple[str, str], float] = {}
    of: dict[AccountScope, dict[str, float]] = {
        AccountScope.CLUSTER_QUEUE: {},
        AccountScope.USER: {},
    }
    for one in used:
        scope, name = one.account.scope, one.account.name
        weighed = rule.weigh(one.amounts)
        if scope is not AccountScope.LOCAL_QUEUE:
            of[scope][name] = weighed
            continue
        namespace, _, local = name.partition("/")
        queue = config.local_queues.get((namespace, local))
        if queue is not None:
            local_queues[namespace, local] = _shared(weighed, queue.weight)
    return PastUse(local_queues, of[AccountScope.CLUSTER_QUEUE], of[AccountScope.USER])


def _shared(weighed: float, weight: int) -> float:
    return weighed * WEIGHT_UNIT / weight if weight else inf
