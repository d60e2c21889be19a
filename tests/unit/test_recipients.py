"""The recipients of an event."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from queuectl.domain.notifications import (
    Audience,
    Event,
    EventType,
    Mode,
    Recipient,
    Scope,
    Subscription,
    SubscriptionIndex,
    recipients,
)

NOW, LATER = Mode.IMMEDIATE, Mode.DIGEST
FAILED = Event(
    at=1.0,
    type=EventType.FAILED,
    kind="Job",
    namespace="team",
    name="train",
    cluster_queue="gpus",
    user="ann",
)
NAMED = replace(FAILED, receivers=("chat", "ops"))
SPENT = Event(at=1.0, type=EventType.BUDGET_SPENT, kind="Budget", name="b", cluster_queue="gpus")
LEADER = Event(at=1.0, type=EventType.LEADER_CHANGED)
OPS = Audience("ops")
MAIL = Audience("ops", personal=True)
TEAM = frozenset({"team"})
OTHER = frozenset({"other"})
ALL = replace(OPS, everything=True)


def own(mode: Mode = NOW, *events: EventType) -> Subscription:
    return Subscription("ann", Scope.USER, "ann", "ops", frozenset(events), mode)


def team(mode: Mode = NOW, owner: str = "bob") -> Subscription:
    return Subscription(owner, Scope.NAMESPACE, "team", "ops", mode=mode)


def gpus(mode: Mode = NOW, owner: str = "cat") -> Subscription:
    return Subscription(owner, Scope.QUEUE, "gpus", "ops", mode=mode)


# (event, audience, subscriptions, recipients as "user:mode")
TABLE: dict[str, tuple[Event, Audience, tuple[Subscription, ...], str]] = {
    "without a request": (FAILED, OPS, (), ""),
    # the annotation
    "the job names it": (NAMED, OPS, (), ":immediate"),
    "the job names another": (replace(FAILED, receivers=("opsx",)), OPS, (), ""),
    "its namespace may": (NAMED, replace(OPS, namespaces=TEAM), (), ":immediate"),
    "its namespace may not": (NAMED, replace(OPS, namespaces=OTHER), (), ""),
    "no namespace may": (NAMED, replace(OPS, namespaces=frozenset()), (), ""),
    "mail to the user of the job": (NAMED, MAIL, (), "ann:immediate"),
    "whose name is not known": (replace(NAMED, user=""), MAIL, (), ""),
    # what an administrator set
    "everything": (FAILED, ALL, (), ":immediate"),
    "as a digest": (FAILED, replace(ALL, mode=LATER), (), ":digest"),
    "of these types": (FAILED, replace(ALL, events=frozenset({EventType.STARTED})), (), ""),
    "its queue": (FAILED, replace(OPS, queues=frozenset({"gpus"})), (), ":immediate"),
    "another queue": (FAILED, replace(OPS, queues=frozenset({"cpus"})), (), ""),
    "its namespace": (FAILED, replace(OPS, own_namespaces=TEAM), (), ":immediate"),
    "another namespace": (FAILED, replace(OPS, own_namespaces=OTHER), (), ""),
    "an administrator is not bound": (FAILED, replace(ALL, namespaces=OTHER), (), ":immediate"),
    "an empty name of a queue": (LEADER, replace(OPS, queues=frozenset({""})), (), ""),
    "nor an empty namespace": (LEADER, replace(OPS, own_namespaces=frozenset({""})), (), ""),
    # subscriptions of users
    "their own events": (FAILED, OPS, (own(),), ":immediate"),
    "of these types only": (FAILED, OPS, (own(NOW, EventType.STARTED),), ""),
    "of this type": (FAILED, OPS, (own(NOW, EventType.FAILED),), ":immediate"),
    "those of others": (replace(FAILED, user="bob"), OPS, (own(),), ""),
    "for another owner": (FAILED, OPS, (replace(own(), owner="eve"),), ""),
    "to another receiver": (FAILED, OPS, (replace(own(), receiver="chat"),), ""),
    "by mail": (FAILED, MAIL, (own(),), "ann:immediate"),
    "of nobody": (replace(FAILED, user=""), OPS, (replace(own(), owner="", target=""),), ""),
    "where tenants may not": (FAILED, replace(OPS, namespaces=OTHER), (own(), team()), ""),
    # namespaces and queues
    "events of a namespace": (FAILED, OPS, (team(LATER),), ":digest"),
    "events of a queue": (FAILED, OPS, (gpus(),), ":immediate"),
    "a queue of tenants that may not": (FAILED, replace(OPS, namespaces=OTHER), (gpus(),), ""),
    "mail to each owner": (FAILED, MAIL, (team(), gpus()), "bob:immediate cat:immediate"),
    "each place once": (NAMED, OPS, (own(LATER), team(LATER), gpus()), ":immediate"),
    "as soon as one asks": (FAILED, OPS, (team(LATER), own(NOW)), ":immediate"),
    "each user once": (NAMED, MAIL, (own(LATER), team(LATER)), "ann:immediate bob:digest"),
    "the administrator's place too": (
        NAMED,
        replace(MAIL, everything=True, mode=LATER),
        (team(),),
        ":digest ann:immediate bob:immediate",
    ),
    # events without a namespace
    "a budget, for administrators": (SPENT, ALL, (), ":immediate"),
    "a budget, for its queue": (SPENT, replace(OPS, namespaces=OTHER), (gpus(),), ":immediate"),
    "a budget, for no user": (replace(SPENT, user="ann"), OPS, (own(), team()), ""),
    "nor for an annotation": (replace(SPENT, receivers=("ops",)), OPS, (), ""),
    "the controller, for administrators": (LEADER, ALL, (own(), team(), gpus()), ":immediate"),
    "the controller, for no other user": (LEADER, OPS, (own(), team(), gpus()), ""),
    "empty targets": (
        LEADER,
        OPS,
        tuple(replace(gpus(), scope=scope, target="", owner="") for scope in Scope),
        "",
    ),
    # tests
    "a test of this receiver": (
        Event(1.0, EventType.RECEIVER_TEST, user="ann", receivers=("ops",)),
        MAIL,
        (),
        "ann:immediate",
    ),
    "in its one place": (
        Event(1.0, EventType.RECEIVER_TEST, user="ann", receivers=("ops",)),
        OPS,
        (),
        ":immediate",
    ),
    "a test of another one": (Event(1.0, EventType.RECEIVER_TEST, receivers=("a",)), ALL, (), ""),
}


def test_an_event_is_sent_to_those_who_requested_it_and_are_allowed() -> None:
    found = {
        text: " ".join(
            f"{each.user}:{each.mode}" for each in recipients(event, audience, subscriptions)
        )
        for text, (event, audience, subscriptions, _) in TABLE.items()
    }
    assert found == {text: expected for text, (*_, expected) in TABLE.items()}


words = st.sampled_from(["", "ann", "bob", "team", "gpus"])
some = st.frozensets(words, max_size=3)
modes = st.sampled_from(Mode)
types = st.sampled_from([each for each in EventType if each is not EventType.RECEIVER_TEST])
events = st.builds(
    Event,
    at=st.just(1.0),
    type=types,
    namespace=words,
    cluster_queue=words,
    user=words,
    receivers=st.lists(st.sampled_from(["ops", "chat"]), max_size=2).map(tuple),
)
audiences = st.builds(
    Audience,
    name=st.just("ops"),
    namespaces=st.none() | some,
    personal=st.booleans(),
    everything=st.booleans(),
    queues=some,
    own_namespaces=some,
    events=st.frozensets(types, max_size=2),
    mode=modes,
)
subscribed = st.builds(
    Subscription,
    owner=words,
    scope=st.sampled_from(Scope),
    target=words,
    receiver=st.sampled_from(["ops", "chat"]),
    events=st.frozensets(types, max_size=2),
    mode=modes,
)
lists = st.lists(subscribed, max_size=4)


@given(events, audiences, lists)
def test_tenants_reach_no_receiver_that_they_may_not_use(
    event: Event, audience: Audience, subscriptions: list[Subscription]
) -> None:
    """Without what the administrator set, an event needs a namespace that may use the receiver, or a queue and no namespace."""
    tenants = replace(audience, everything=False, queues=frozenset(), own_namespaces=frozenset())
    found = recipients(event, tenants, subscriptions)
    served = tenants.namespaces is None or event.namespace in tenants.namespaces
    if found and event.namespace:
        assert served
    if found and not event.namespace:
        assert any(
            s.scope is Scope.QUEUE and s.target == event.cluster_queue for s in subscriptions
        )
    known = {event.user} | {s.owner for s in subscriptions} if tenants.personal else {""}
    assert {each.user for each in found} <= known
    if tenants.personal and event.user == "" and not subscriptions:
        assert found == ()


@given(events, audiences, lists)
def test_an_index_of_subscriptions_changes_no_recipient(
    event: Event, audience: Audience, subscriptions: list[Subscription]
) -> None:
    """It leaves out subscriptions to other targets, so that many of them do not delay the delivery."""
    indexed = SubscriptionIndex(subscriptions).about(event)
    assert recipients(event, audience, indexed) == recipients(event, audience, subscriptions)
    assert {each.target for each in indexed} <= {event.user, event.namespace, event.cluster_queue}


@given(events, audiences, lists, subscribed)
def test_one_more_subscription_takes_nothing_away(
    event: Event, audience: Audience, subscriptions: list[Subscription], more: Subscription
) -> None:
    before = recipients(event, audience, subscriptions)
    after = recipients(event, audience, [*subscriptions, more])
    assert {each.user for each in before} <= {each.user for each in after}
    immediate = {each for each in before if each.mode is NOW}
    assert immediate <= {*after}
    assert after == recipients(event, audience, [more, *reversed(subscriptions)])
    assert len({each.user for each in after}) == len(after)
    assert all(isinstance(each, Recipient) for each in after)
