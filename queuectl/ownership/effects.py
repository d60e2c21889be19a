"""Whether an edit of configuration only permits more, so that nothing that runs can lose by it."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Final

from queuectl.domain.ledger import Document
from queuectl.domain.quantity import QuantityError, exact_quantity
from queuectl.domain.queues import StopPolicy
from queuectl.objects.configuration.diff import Difference, differences

_AMOUNT: Final = re.compile(r"\.resources\[(?P<resource>[^\]]+)\]\.(nominalQuota|borrowingLimit)$")


def permits_more(before: Document | None, after: Document | None) -> bool:
    """Whether a change of one object takes nothing from running gangs: no quota, no node, no right to be admitted.

    A new object does so, and a higher quota or borrowing limit, and a weaker stop policy. Each other edit counts as one that takes
    something, so a wrong answer costs a wait of seconds and evicts nothing.

    Args:
        before: the stored document; None = a new object.
        after: the new document; None = a deletion.
    """
    if before is None or after is None:
        return before is None
    return all(map(_permits, differences(before, after)))


def _permits(difference: Difference) -> bool:
    if difference.field == "spec.stopPolicy":
        return _strength(difference.after) <= _strength(difference.before)
    amount = _AMOUNT.search(difference.field)
    if amount is None:
        return False
    before = _amount(amount["resource"], difference.before)
    after = _amount(amount["resource"], difference.after)
    if difference.field.endswith("borrowingLimit"):  # without a limit, it is infinite
        return after is None or (before is not None and after >= before)
    return before is not None and after is not None and after >= before


def _strength(policy: Any) -> int:
    return StopPolicy(policy or StopPolicy.NONE).strength


def _amount(resource: str, quantity: Any) -> Decimal | None:
    try:
        return None if quantity is None else exact_quantity(resource, str(quantity))
    except QuantityError:
        return None
