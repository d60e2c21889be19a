"""The requests, decoders, retries and streams of the Python client, without I/O."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuectl.api import feed
from queuectl.api.problems import ProblemType
from queuectl.client import (
    AsyncClient,
    BadAnswer,
    Client,
    ClientError,
    ClientOptions,
    ConflictingState,
    InvalidOption,
    NoAnswer,
    ObjectNotFound,
    RequestRefused,
    ServerFault,
    ServerUnavailable,
    WaitTimeout,
    WorkloadEnded,
    answers,
    errors,
    requests,
    stream,
)
from queuectl.client.answers import BodyReader, HttpAnswer
from queuectl.client.requests import Request
from queuectl.client.retries import RETRIES, Attempts
from queuectl.client.stream import EventDecoder, Following, StateWait, StreamEvent
from queuectl.domain.ledger import State

URL = "http://127.0.0.1:8000/api/v1/workloads"
PATH = "/api/v1/namespaces/ml/workloads/train"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=6,
)  # fmt: skip


def answer(body: bytes, status: int = 200, **headers: str) -> HttpAnswer:
    return HttpAnswer(
        URL, status, {name.replace("_", "-"): value for name, value in headers.items()}, body
    )


def problem(slug: str, status: int, **members: Any) -> bytes:
    uri = f"https://queuectl.dev/problems/{slug}"
    return json.dumps({"type": uri, "status": status, "detail": "why", **members}).encode()


def test_each_request_has_its_method_target_body_and_whether_it_can_be_repeated() -> None:
    table: list[tuple[Request[Any], str, str, Any, bool]] = [
        (requests.workload(PATH, None), "GET", PATH, None, True),
        (requests.explain(PATH, "Job"), "GET", f"{PATH}/explain?kind=Job", None, True),
        (requests.get("/x", a=[1, "b c"], b=None, c=True), "GET", "/x?a=1&a=b+c&c=true", None, True),
        (requests.put("/x", {"a": 1}), "PUT", "/x", {"a": 1}, False),
        (requests.post("/x", {}), "POST", "/x", {}, False),
        (requests.delete("/x"), "DELETE", "/x", None, False),
        (requests.what_if({"drain": ["n"]}), "POST", "/api/v1/plans", {"drain": ["n"]}, True),
        (requests.command(PATH, "hold", None, None, {"why": "x"}), "POST", f"{PATH}/hold", {"why": "x"}, True),
        (requests.command(PATH, "priority", None, None, {"priority": None}), "POST", f"{PATH}/priority", {"priority": None}, True),
        (requests.preview(PATH, "hold", None, {}), "POST", f"{PATH}/hold?dry_run=true", {}, True),
        (requests.command_result(7), "GET", "/api/v1/commands/7", None, True),
        (requests.stop_queue("/q", None, drain=True, dry_run=False), "POST", "/q/stop", {"drain": True, "reason": None}, False),
        (requests.stop_queue("/q", "r", drain=False, dry_run=True), "POST", "/q/stop?dry_run=true", {"drain": False, "reason": "r"}, True),
        (requests.resume_queue("/q", None, dry_run=False), "POST", "/q/resume", {"reason": None}, False),
        (requests.report("usage", "user", "24h", None), "GET", "/api/v1/reports/usage?by=user&since=24h", None, True),
        (requests.events(5, {"uid": "u"}, follow=False), "GET", "/api/v1/events?after=5&follow=false&uid=u", None, True),
    ]  # fmt: skip
    for request, method, target, document, repeatable in table:
        found = (request.method, request.target, request.document, request.repeatable)
        assert found == (method, target, document, repeatable)
    assert requests.delete("/x", "7").headers == {"If-Match": '"7"'}
    keys = [
        requests.command(PATH, "hold", None, key, {}).headers["Idempotency-Key"]
        for key in ("mine", None, None)
    ]
    assert keys[0] == "mine"
    assert len(set(keys)) == 3, "without a key, each command has its own"


def test_a_workload_is_named_in_three_ways_and_no_name_changes_the_path() -> None:
    for given_name, path in (
        ("train", PATH),
        ("ml/train", PATH),
        ({"uid": "a?b/c"}, "/api/v1/workloads/a%3Fb%2Fc"),
        ("a?b#c", "/api/v1/namespaces/ml/workloads/a%3Fb%23c"),
    ):
        assert requests.workload_path(given_name, "ml") == path
    for wrong in ("", "a/", "a/b/c"):
        with pytest.raises(InvalidOption, match="not of the form"):
            requests.workload_path(wrong, "ml")
    for wrong in ("..", "../train", "./train", "ml/.."):
        with pytest.raises(InvalidOption, match="is not a name"):
            requests.workload_path(wrong, "ml")
    with pytest.raises(InvalidOption, match="is not a name"):
        requests.workload_path({"uid": ".."}, "ml")
    with pytest.raises(InvalidOption, match="is not a name"):
        requests.queue_path("..", "ml")
    assert requests.queue_path("a/b", None) == "/api/v1/clusterqueues/a%2Fb"
    assert requests.queue_path("q", "ml") == "/api/v1/namespaces/ml/localqueues/q"


@settings(max_examples=20)
@given(JSON)
def test_an_answer_is_what_was_sent_with_fields_that_the_client_does_not_know(value: Any) -> None:
    document = {"items": [], "unknown": value}
    assert answers.page(answer(json.dumps(document).encode())) == document


@given(st.dictionaries(st.text(min_size=1), st.text() | st.lists(st.text(), max_size=3)))
def test_a_query_arrives_as_it_was_given(query: dict[str, Any]) -> None:
    pairs = [
        (name, each)
        for name, given_value in query.items()
        for each in (given_value if isinstance(given_value, list) else [given_value])
    ]
    target = requests.Request("GET", "/x", answers.json_object, query).target
    assert parse_qsl(urlsplit(target).query, keep_blank_values=True) == pairs


def test_the_unfinished_states_are_those_of_the_ledger() -> None:
    assert list(requests.UNFINISHED) == [each for each in State if each is not State.FINISHED]


def test_each_type_of_problem_has_its_error() -> None:
    assert set(errors.PROBLEMS) == {kind.slug for kind in ProblemType}
    for kind in ProblemType:
        refused = raised(answer(problem(kind.slug, kind.status, more=[1]), kind.status))
        assert type(refused) is errors.PROBLEMS[kind.slug]
        assert isinstance(refused, RequestRefused)
        assert (str(refused), refused.type, refused.status) == ("why", kind.slug, kind.status)
        assert refused.members["more"] == [1]


def test_a_problem_of_a_newer_server_counts_by_its_status() -> None:
    for status, kind in (
        (404, ObjectNotFound),
        (409, ConflictingState),
        (418, errors.InvalidRequest),
        (500, ServerFault),
        (503, ServerUnavailable),
    ):
        for body in (problem("new", status), b"{}", b'{"detail": 5, "errors": 7, "type": []}'):
            assert type(raised(answer(body, status))) is kind
    later = raised(answer(b"{}", 429, retry_after="7"))
    assert isinstance(later, ServerUnavailable)
    assert later.retry_after == 7.0


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"<html>", "not JSON"),
        (b"[]", "not JSON"),
        (b"\xff", "not JSON"),
        (b'{"a": NaN}', "not JSON"),
        (b'{"a":' * 2000 + b"1" + b"}" * 2000, "more than 100 levels"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "more than 100 levels"),
        (b'{"a": [' + b"[" * 100_000, "more than 100 levels|not JSON"),
        (b'{"a": ' + b"9" * 400 + b"}", "too many digits"),
        (b'{"a": 1e999}', "too many digits"),
        (b'{"a": 0.' + b"1" * 400 + b"}", "too many digits"),
        (b'{"items": 7}', "no list `items`"),
        (b'{"items": [' + b"[]," * 5_000_001 + b"[]]}", "more than 5000000 values"),
    ],
)
def test_an_answer_that_no_server_of_queuectl_sends_is_an_error(body: bytes, says: str) -> None:
    with pytest.raises(BadAnswer, match=says):
        answers.page(answer(body))


def test_texts_with_long_numbers_are_not_numbers() -> None:
    document = {"items": [], "a": "9" * 400, "b": "1e999", "c": 1.5e300, "d": 2**64}
    assert answers.page(answer(json.dumps(document).encode())) == document


def test_an_error_of_another_server_shows_its_status() -> None:
    page = b"<html>"
    for status, says in (
        (502, "HTTP 502: a proxy answers"),
        (404, "HTTP 404: the answer is not JSON"),
    ):
        error = raised(answer(page, status))
        assert isinstance(error, BadAnswer)
        assert says in str(error)


def test_a_redirect_is_not_followed() -> None:
    error = raised(answer(b"", 307, location="https://elsewhere.example/" + "x" * 1000))
    assert isinstance(error, BadAnswer)
    assert "redirects to 'https://elsewhere.example/" in str(error)
    assert len(str(error)) < 1000


def test_a_body_has_limits_of_size_and_time() -> None:
    reader = BodyReader(URL, 200, {}, 0.0)
    reader.add(b"x" * answers.LARGEST_BODY, 1.0)
    with pytest.raises(BadAnswer, match="larger than 64 MiB"):
        reader.add(b"x", 1.0)
    with pytest.raises(NoAnswer, match="not complete after 120 s"):
        BodyReader(URL, 200, {}, 0.0).add(b"x", 121.0)
    with pytest.raises(BadAnswer, match="not requested"):
        BodyReader(URL, 200, {"content-encoding": "gzip, gzip"}, 0.0)


def pages_of(listing: requests.Listing[Any], page: Callable[[int], Any]) -> list[str]:
    """The targets that a client requests, with these pages as answers."""
    plan, targets = listing.pages(), list[str]()
    while (request := plan.request()) is not None:
        targets.append(request.target)
        plan.received(page(len(targets)))
    return targets


def test_a_list_ends_where_the_server_ends_it_or_at_the_number_that_is_wanted() -> None:
    def two(number: int) -> Any:
        return {"items": [1], "nextCursor": "c" if number == 1 else None}

    assert pages_of(requests.by_cursor("/x", a="b"), two) == [
        "/x?a=b&limit=500",
        "/x?a=b&limit=500&cursor=c",
    ]
    after = requests.oldest_first("/x")
    assert pages_of(after, lambda _: {"items": []}) == ["/x?limit=500&after=0"]
    newest = requests.newest_first("/x", 700)
    full = pages_of(newest, lambda n: {"items": [1] * 500, "nextBefore": n})
    assert full == ["/x?limit=500", "/x?limit=200&before=1"]
    assert pages_of(requests.newest_first("/x", 0), two) == []


@pytest.mark.parametrize(
    ("page", "says"),
    [
        (lambda _: {"items": [1], "nextCursor": "same"}, "does not advance"),
        (lambda n: {"items": [], "nextCursor": f"{n}"}, "does not advance"),
        (lambda n: {"items": [1], "nextCursor": f"{n}"}, "more than 10000 pages"),
        (lambda _: {"items": [1], "nextCursor": "x" * 3000}, "does not advance"),
        (lambda _: {"items": [1], "nextCursor": {"a": 1}}, "does not advance"),
    ],
)
def test_a_list_that_never_ends_is_an_error(page: Callable[[int], Any], says: str) -> None:
    with pytest.raises(BadAnswer, match=says):
        pages_of(requests.by_cursor("/x"), page)


def test_only_what_can_help_and_have_no_further_effect_is_sent_again() -> None:
    busy, refused = errors.refused({}, 429, 7.0), errors.refused({}, 404)
    table: list[tuple[ClientError, bool]] = [
        (NoAnswer("x"), True),
        (busy, True),
        (errors.refused({}, 503, 0.0), True),
        (errors.refused({}, 502), True),
        (errors.refused({}, 503), False),
        (errors.refused({}, 429, 3600.0), False),
        (refused, False),
        (errors.refused({}, 500, 1.0), False),
        *((raised(answer(b"<html>", status)), True) for status in (502, 503, 504)),
        (raised(answer(b"<html>", 500)), False),
        (BadAnswer("x"), False),
        (errors.CertificateRefused("x"), False),
    ]
    for error, again in table:
        assert (Attempts(RETRIES, repeatable=True).pause(error) is not None) is again, error
        assert Attempts(RETRIES, repeatable=False).pause(error) is None
    assert Attempts(1, repeatable=True).pause(busy) == 7.0
    attempts = Attempts(RETRIES, repeatable=True)
    pauses = [attempts.pause(NoAnswer("x")) for _ in range(RETRIES + 1)]
    assert pauses[-1] is None
    assert 1.75 <= sum(filter(None, pauses)) <= 3.5


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


STEPS = st.lists(st.tuples(st.integers(0, 2**62), st.text(max_size=20)), max_size=6)


@given(STEPS, st.lists(st.integers(1, 40), max_size=30))
def test_events_are_decoded_wherever_the_connection_divides_them(
    steps: list[tuple[int, str]], cuts: list[int]
) -> None:
    text = feed.opening(3) + "".join(
        feed.step(number, json.dumps({"name": name})) + feed.heartbeat(number)
        for number, name in steps
    )
    body, decoder, found = text.encode(), EventDecoder(URL), list[StreamEvent]()
    for size in [*cuts, len(body)]:
        found += decoder.add(body[:size])
        body = body[size:]
    assert [(block.id, block.data["name"]) for block in found if block.event == "step"] == steps
    assert len(found) == 1 + 2 * len(steps)


def test_an_invalid_stream_and_one_that_stalls_are_errors() -> None:
    clock = Clock()
    for body in (b"data: {}\n\n", b"id: x\n\n", b"id: " + b"9" * 400 + b"\n\n"):
        with pytest.raises(BadAnswer, match="without an id"):
            list(EventDecoder(URL, clock).add(body))
    with pytest.raises(BadAnswer, match="larger than 16 MiB"):
        list(EventDecoder(URL, clock).add(b"x" * (stream.LARGEST_BLOCK + 1)))
    drips = EventDecoder(URL, clock)
    for clock.now in range(46):
        assert not list(drips.add(b"x"))
    clock.now = 46.0
    with pytest.raises(NoAnswer, match="no complete event"):
        list(drips.add(b"x"))


def test_a_stream_continues_over_outages_and_ends_after_a_minute_or_a_refusal() -> None:
    clock = Clock()
    following = Following(5, {}, clock=clock)
    assert following.silence() == stream.SILENCE_SECONDS
    assert following.received(StreamEvent(9, "step", {}))
    assert not following.received(StreamEvent(11, "", {}))
    following.interrupted(NoAnswer("broken"))
    following.interrupted(errors.refused({}, 503, 2.0))
    for status in (502, 503, 504):
        following.interrupted(raised(answer(b"<html>", status)))
    following.interrupted(errors.refused({}, 504))
    assert "after=11" in following.request().target
    for final in (errors.refused({}, 403), BadAnswer("html"), errors.CertificateRefused("x")):
        with pytest.raises(type(final)):
            following.interrupted(final)
    clock.now = 61.0
    with pytest.raises(NoAnswer, match="broken"):
        following.interrupted(NoAnswer("broken"))
    with pytest.raises(NoAnswer, match="closes each event stream"):
        following.ended()


def test_a_wait_ends_in_time_and_not_before() -> None:
    clock = Clock()
    following = Following(5, {}, 100.0, clock)
    for clock.now, left, shortens in (
        (0.0, 45.0, False),
        (50.0, 45.0, False),
        (60.0, 40.0, True),
        (99.0, 1.0, True),
    ):
        assert following.shortens() is shortens
        assert following.silence() == left
        assert not following.shortens(), "a new connection waits at most for the rest"
    clock.now = 100.0
    for end in (following.silence, lambda: following.interrupted(NoAnswer("x"))):
        with pytest.raises(WaitTimeout):
            end()
    running = StateWait("running", None)
    assert [running.reached(state) for state in ("Pending", "Running", 5)] == [False, True, False]
    assert running.deadline is None
    assert StateWait("finished", None).reached("Finished")
    with pytest.raises(WorkloadEnded):
        running.reached("Finished")


@pytest.mark.parametrize(
    ("last", "says"),
    [
        (feed.end(9), ""),
        ("", "the stream ended before its last event"),
        (feed.heartbeat(9), "the stream ended before its last event"),
        (feed.cut(7), "more slowly than they arrive"),
        (feed.signed_out(7), "your session or token has ended"),
        (feed.reset(3), "the database was restored"),
    ],
    ids=["end", "nothing", "sign of life", "cut", "signed out", "reset"],
)
def test_a_list_of_steps_is_complete_or_an_error(last: str, says: str) -> None:
    text = feed.opening(5) + feed.step(6, '{"id": 6}') + feed.step(7, '{"id": 7}') + last
    transport = httpx2.MockTransport(
        lambda _: httpx2.Response(200, text=text, headers={"Content-Type": "text/event-stream"})
    )

    async def listed() -> list[int]:
        async with AsyncClient("http://127.0.0.1", transport=transport) as client:
            return [step["id"] for step in await client.events(5)]

    with Client("http://127.0.0.1", transport=transport) as client:
        if not says:
            assert [step["id"] for step in client.events(5)] == asyncio.run(listed()) == [6, 7]
            return
        with pytest.raises(NoAnswer, match=says):
            client.events(5)
        with pytest.raises(NoAnswer, match=says):
            asyncio.run(listed())


def test_options_come_from_arguments_then_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QUEUECTL_SERVER", "https://q.example")
    monkeypatch.setenv("QUEUECTL_TOKEN_FILE", "/t")
    options = ClientOptions.from_environment()
    assert (options.server, str(options.token_file)) == ("https://q.example", "/t")
    named = ClientOptions.from_environment(server="http://127.0.0.1", token="secret")
    assert (named.server, named.token_file, "secret" in repr(named)) == (
        "http://127.0.0.1",
        None,
        False,
    )
    for server in ("", "ftp://x", "http://", "http://[::1", "q.example"):
        with pytest.raises(InvalidOption, match=r"server .* not an address like"):
            ClientOptions(server=server).check()
    with pytest.raises(InvalidOption, match="token and service_account exclude each other"):
        ClientOptions(token="a", service_account="b/c").check()


def raised(found: HttpAnswer) -> ClientError:
    with pytest.raises(ClientError) as error:
        answers.check(found)
    return error.value
