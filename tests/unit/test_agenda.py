"""The order of events on a simulated clock."""

from __future__ import annotations

from queuectl.domain.agenda import Agenda


def happened(agenda: Agenda[str]) -> list[tuple[float, list[str]]]:
    """Each time at which something happens, with its events."""
    instants = []
    while agenda:
        events = list(agenda.due())
        instants.append((agenda.now, events))
    return instants


def test_events_are_in_the_order_of_time_phase_and_addition() -> None:
    agenda = Agenda[str]()
    for at, event, phase in ((5, "d", 1), (3, "a", 2), (5, "c", 0), (5, "e", 1)):
        agenda.add(at, event, phase)
    assert [event for _, event in agenda.in_order()] == ["a", "c", "d", "e"]
    assert happened(agenda) == [(3, ["a"]), (5, ["c", "d", "e"])]


def test_an_event_that_is_added_again_moves() -> None:
    agenda = Agenda[str]()
    for at, event in ((1, "a"), (2, "b"), (4, "a")):
        agenda.add(at, event)
    assert agenda.in_order() == [(2, "b"), (4, "a")]
    assert happened(agenda) == [(2, ["b"]), (4, ["a"])]


def test_the_clock_does_not_stop_at_the_time_of_a_removed_event() -> None:
    agenda = Agenda[str]()
    for at, event in ((1, "a"), (2, "b"), (3, "c")):
        agenda.add(at, event)
    agenda.remove("a")
    agenda.remove("c")
    agenda.remove("never added")
    assert happened(agenda) == [(2, ["b"])]


def test_an_event_that_is_added_at_its_own_time_happens_at_once() -> None:
    agenda = Agenda[str]()
    agenda.add(2, "first")
    events = []
    for event in agenda.due():
        events.append(event)
        if event == "first":
            agenda.add(2, "second")
            agenda.add(3, "later")
    assert events == ["first", "second"]
    assert agenda.in_order() == [(3, "later")]


def test_the_clock_never_shows_an_earlier_time() -> None:
    agenda = Agenda[str](now=10.0)
    agenda.add(4, "late")
    assert happened(agenda) == [(10.0, ["late"])]
