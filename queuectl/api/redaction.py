"""Which names of gangs a caller of the API sees, by its rights; the redaction itself is in :mod:`queuectl.domain.redaction`."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fastapi import Request

from queuectl.api.access import Guard, Visible
from queuectl.db.ports import ApiStore
from queuectl.domain.redaction import Explanation, Redactor, namespaces_in


def redactor_for(
    namespaces: Iterable[str], visible: Visible, own: Collection[str] = ()
) -> Redactor:
    """The redactor for a caller that can see the gangs of some of the ``namespaces`` namespaces. ``own``: see :class:`Redactor`."""
    if visible is None:
        return Redactor()
    return Redactor(frozenset(namespaces) - frozenset(visible), drawn=True, own=own)


async def redactor_of(
    guard: Guard, request: Request, store: ApiStore, texts: Iterable[Explanation | str]
) -> Redactor:
    """The redactor for the caller of a request. Can raise ClusterUnavailable and StoreUnavailable.

    Names of gangs in a namespace without a LocalQueue and without a workload are not redacted.
    """
    known: set[str] = set()

    async def there() -> Iterable[str]:
        named = frozenset[str]().union(*map(namespaces_in, texts))
        if named:  # only known namespaces count: a text of this form can also be an image
            known.update(named & await store.namespaces())
        return known

    return redactor_for(known, await guard.visible(request, "list", "workloads", there))
