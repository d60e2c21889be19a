"""The right to read objects that were set aside."""

from __future__ import annotations

import pytest

from queuectl.domain.containment import SetAsideObject
from queuectl.domain.identity import Right
from tests.api.signed import ADMIN, asking, signed_app
from tests.doubles.access import MemoryAccess
from tests.doubles.store import MemoryStore

PATHS = ("/api/v1/setasideobjects", "/api/v1/setasideobjects/1")
PLANS = (Right("list", "refusedplans"), Right("get", "refusedplans"))


@pytest.mark.parametrize(
    ("rights", "code"), [(PLANS, 403), ((*PLANS, Right("get", "refusedplans/names")), 200)]
)
async def test_a_reader_needs_the_right_to_see_names(rights: tuple[Right, ...], code: int) -> None:
    store, access = MemoryStore(), MemoryAccess()
    epoch = await store.take_over("leader", 0)
    one = SetAsideObject(0, 1.0, epoch, "object", "u", "jobs/team-a/train", "e", "p", 2, False)
    await store.keep_set_aside(one, b"{}")
    access.know(ADMIN, "admin", *rights)
    async with asking(signed_app(store, access), ADMIN) as client:
        answers = [await client.get(path) for path in PATHS]
    assert [answer.status_code for answer in answers] == [code, code]
    assert all(("train" in answer.text) == (code == 200) for answer in answers[:1])
