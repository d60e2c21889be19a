"""Receivers of events, and subscriptions to them."""

# No postponed annotations here: see routes/config.py.

from enum import Enum
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request

from queuectl.api.access import Guard, caller_of
from queuectl.api.auth.audit import record_change
from queuectl.api.body import missing, read_small
from queuectl.api.openapi import BODY_PROBLEMS, model_body, responses
from queuectl.api.params import After, DryRun, Limit, Name, Number
from queuectl.api.problems import ProblemType
from queuectl.api.subscriptions import (
    ReceiverPage,
    ReceiverTestView,
    SubscriptionBody,
    SubscriptionPage,
    Subscriptions,
    SubscriptionView,
)
from queuectl.db.ports import ApiStore
from queuectl.domain.identity import Right
from queuectl.domain.notifications import Event, EventType
from queuectl.objects.configuration.config_kinds import PREFIX

P = ProblemType
PATH: Final = f"{PREFIX}/subscriptions"
RECEIVERS: Final = f"{PREFIX}/receivers"
_TAGS: Final[list[str | Enum]] = ["Notifications"]
Everyone = Annotated[
    bool,
    Query(
        alias="all",
        description="Of all users. It needs the right `list subscriptions` in all namespaces.",
    ),
]


def add_routes(
    routes: APIRouter, guard: Guard, store: ApiStore, subscriptions: Subscriptions
) -> None:
    """Offer the paths."""

    @routes.get(
        RECEIVERS,
        tags=_TAGS,
        operation_id="listReceivers",
        summary="The receivers of events that you can use",
        description="Those for the namespaces in which you have the right `list receivers`.",
        responses=responses(),
    )
    async def list_receivers(request: Request) -> ReceiverPage:
        return await subscriptions.receivers(request)

    @routes.post(
        f"{RECEIVERS}/{{name}}/test",
        tags=_TAGS,
        operation_id="testReceiver",
        summary="Send a test event to a receiver",
        description="It is delivered like each other event. The status of the receiver shows a failure.",
        status_code=202,
        responses=responses(P.NOT_FOUND, P.NOT_IN_THIS_STATE),
        dependencies=[guard.needs("create", "receivers/test")],
    )
    async def test_receiver(request: Request, name: Name) -> ReceiverTestView:
        address = await subscriptions.test_target(request, name)
        user = caller_of(request).name
        event = Event(
            at=0.0,  # the store assigns the time
            type=EventType.RECEIVER_TEST,
            user=user if address is not None else "",
            receivers=(name,),
            message=f"{user} tests the receiver {name}",
        )
        await store.notifications.announce_test(event)
        record_change(request, f"test event for receiver {name}")
        return ReceiverTestView(receiver=name, to=address)

    @routes.get(
        PATH,
        tags=_TAGS,
        operation_id="listSubscriptions",
        summary="Your subscriptions, or those of all users",
        responses=responses(),
    )
    async def list_subscriptions(
        request: Request, everyone: Everyone = False, after: After = 0, limit: Limit = 100
    ) -> SubscriptionPage:
        if everyone:
            return await subscriptions.every(request, after, limit)
        return await subscriptions.own(request)

    @routes.post(
        PATH,
        tags=_TAGS,
        operation_id="createSubscription",
        summary="Subscribe to events",
        description="One with the same scope, target and receiver is replaced. To subscribe to your own jobs, you need the right "
        "`create subscriptions` in any namespace; to a namespace, in it; to a ClusterQueue, in all namespaces.",
        response_model=SubscriptionView,
        responses=responses(
            *BODY_PROBLEMS,
            P.NOT_FOUND,
            P.NOT_IN_THIS_STATE,
        ),
        openapi_extra=model_body(SubscriptionBody),
    )
    async def create_subscription(request: Request) -> Any:
        if not await subscriptions.may_create(request):
            await guard.require(request, Right("create", "subscriptions"))
        body = await read_small(request, SubscriptionBody)
        if body is None:
            raise missing()
        return await subscriptions.create(request, body)

    @routes.delete(
        f"{PATH}/{{number}}",
        tags=_TAGS,
        operation_id="deleteSubscription",
        summary="Delete a subscription",
        description="Your own; with the right `delete subscriptions` in all namespaces, any.",
        status_code=204,
        responses=responses(P.NOT_FOUND),
    )
    async def delete_subscription(
        request: Request, number: Number, dry_run: DryRun = False
    ) -> None:
        await subscriptions.delete(request, number, dry_run=dry_run)
