"""Logs on pages: the viewers of each log, the end of a stream, its bounds, and its line in the audit log."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from queuectl.api.auth.authentication import PROOF, SESSION_PATH
from queuectl.domain.audit import AuditFilter
from queuectl.domain.errors import ClusterUnavailable, ObjectGone
from queuectl.domain.identity import Right
from queuectl.domain.log_text import LONGEST_LINE
from queuectl.web.app import add_dashboard
from queuectl.web.log_streams import CLOSING, ENDED, GONE, SIGNED_OUT, UNCHECKED, UNREADABLE
from tests.api.signed import ADMIN, asking, bearer, signed_app
from tests.doubles.access import MemoryAccess
from tests.doubles.pod_logs import MemoryLog, MemoryPod
from tests.doubles.store import MemoryStore
from tests.web.pod_log_pages import (
    OF_LOG,
    OF_WORKLOAD,
    PATH,
    PATIENCE,
    POD,
    TEAM,
    WORKLOAD,
    LogEvents,
    fields,
    limited,
    log_pages,
    pod_of,
)

# ---- the page and the stream


async def test_without_the_opt_in_neither_the_page_nor_the_stream_exists() -> None:
    access = MemoryAccess()
    access.know(ADMIN, "admin", master=True)
    app = signed_app(MemoryStore(), access)
    add_dashboard(app, MemoryStore(), app.state.guard)
    async with asking(app, ADMIN) as client:
        for method in ("GET", "POST"):
            assert (await client.request(method, PATH)).status_code == 404
    assert not [path for path in _paths(app) if path.endswith("/logs")]


def _paths(app: object) -> list[str]:
    routes = getattr(app, "routes", [])
    return [path for route in routes for path in (getattr(route, "path", ""), *_paths(route))]


async def test_the_page_offers_the_containers_and_the_pods_lead_to_it() -> None:
    async with log_pages() as pages:
        answer = await pages.client.get(PATH, headers=bearer(ADMIN))
        assert answer.status_code == 200
        assert "<option selected>main</option>" in answer.text
        assert "<option data-restarted>side</option>" in answer.text
        assert "one\n" not in answer.text
        table = await pages.client.get(f"/ui/workloads/{WORKLOAD}/pods", headers=bearer(ADMIN))
        assert f'href="{PATH}"' in table.text
        assert "kubectl describe pod -n team-a train-0" in table.text, "it is pending"


async def test_a_log_is_followed_and_its_reading_is_in_the_audit_log() -> None:
    async with log_pages() as pages:
        async with pages.opened(tail="1") as events:
            assert events.answer.status_code == 200
            assert events.answer.headers["content-type"].startswith("text/event-stream")
            assert events.answer.headers["x-accel-buffering"] == "no"
            assert await events.text() == "two\n"
            [line] = await pages.store.audit.lines(AuditFilter(), 10)
            pages.log.write(b"three\n")
            assert await events.text() == "three\n"
            pages.log.end()
            assert await events.rest() == ("", ENDED)
        async with pages.opened(container="side", previous="on") as events:
            assert await events.text() == "before\n"
            assert await events.rest() == ("", ENDED)
    assert fields(line) == {
        "caller": "admin",
        "method": "POST",
        "path": PATH,
        "operation": "readPodLog",
        "status": 200,
        "detail": "log of container main of pod team-a/train-0",
    }


async def test_a_log_that_is_not_followed_ends_with_the_lines_of_now() -> None:
    async with log_pages() as pages, pages.opened(follow="") as events:
        assert await events.text() == "one\ntwo\n"
        assert await events.rest() == ("", ENDED)


async def test_a_log_that_cannot_be_read_has_a_problem_and_a_line() -> None:
    async with log_pages() as pages:
        logs = pages.source.pods[TEAM, "train-0"].logs
        logs["side"] = MemoryLog(waiting="ImagePullBackOff")
        waiting = await pages.refused(container="side")
        previous = await pages.refused(previous="on")
        container = await pages.refused(container="main\n")
        tails = [await pages.refused(tail=tail) for tail in ("0", "-1", "5001", "9" * 400, "٣")]
        pages.source.forbidden.add(TEAM)
        no_right = await pages.refused()
        pages.source.down = ClusterUnavailable("no route to host")
        down = await pages.refused()
        lines = await pages.store.audit.lines(AuditFilter(), 100)
    assert (waiting["status"], "waiting to start: ImagePullBackOff" in waiting["detail"]) == (409, True)  # fmt: skip
    assert (previous["status"], "previous terminated container" in previous["detail"]) == (409, True)  # fmt: skip
    assert container["status"] == 422
    assert {tail["status"] for tail in tails} == {422}
    assert (no_right["status"], "queuectl's own account" in no_right["detail"]) == (409, True)
    assert down["status"] == 503
    assert [line.status for line in lines] == [503, 409, 422, 422, 422, 422, 422, 422, 409, 409]
    assert all(line.detail for line in lines)


# ---- viewers


async def test_a_viewer_needs_the_rights_to_the_workload_and_to_the_log() -> None:
    other = Right("get", "pods/log", "team-b", group="")
    of_queuectl = Right("get", "pods/log", TEAM)
    listing = Right("list", "pods", TEAM, group="")
    of_name = Right("get", "pods/log", TEAM, "train-0", group="")
    of_other_name = Right("get", "pods/log", TEAM, "other-0", group="")
    cases = (
        ((), 404),
        ((OF_LOG,), 404),
        ((OF_WORKLOAD,), 403),
        ((OF_WORKLOAD, other, of_queuectl, listing), 403),
        ((OF_WORKLOAD, of_other_name), 403),
        ((OF_WORKLOAD, of_name), 200),
        ((OF_WORKLOAD, OF_LOG), 200),
    )
    async with log_pages() as pages:
        for number, (rights, expected) in enumerate(cases):
            pages.access.know(f"token-{number}", f"user-{number}", *rights)
            page = await pages.client.get(PATH, headers=bearer(f"token-{number}"))
            assert page.status_code == expected, rights
            if expected == 200:
                async with pages.opened(f"token-{number}") as events:
                    assert await events.text("two\n")
                continue
            problem = await pages.refused(token=f"token-{number}")
            assert problem["status"] == expected
            assert "train-0" not in problem["detail"] or OF_WORKLOAD in rights
        lines = await pages.store.audit.lines(AuditFilter(caller="user-2"), 10)
        assert [(line.status, line.detail) for line in lines] == [
            (403, "user-2 may not get pods/log train-0 in namespace team-a")
        ]
        assert (await pages.client.post(PATH)).status_code == 401


async def test_only_this_pod_of_the_workload_is_read() -> None:
    async with log_pages() as pages:
        for pod in ("uid-other-0", "uid-foreign-0", "train-0", "other-0", "x" * 3000):
            problem = await pages.refused(f"/ui/workloads/{WORKLOAD}/pods/{pod}/logs")
            assert problem["status"] == 404, pod
        problem = await pages.refused(f"/ui/workloads/uid-job-other/pods/{POD}/logs")
        assert problem["status"] == 404
        # The watch shows a pod that the API server no longer has, or has again.
        pages.source.pods[TEAM, "train-0"] = MemoryPod("uid-new", {"main": MemoryLog(b"secret")})
        assert (await pages.refused())["detail"] == GONE
        # The watch shows it: the old address leads to no log.
        pages.watched.of = {WORKLOAD: (pod_of("uid-new", "train-0"),)}
        assert (await pages.refused())["detail"] == GONE
        # A record that claims another namespace is not of the namespace for which the right was reviewed.
        pages.watched.of = {WORKLOAD: (pod_of(POD, "foreign-0", "team-b"),)}
        assert (await pages.refused())["detail"] == GONE
        pages.watched.of = None
        assert (await pages.refused())["status"] == 503


async def test_another_site_opens_no_log_with_the_session_of_its_visitor() -> None:
    async with log_pages() as pages:
        await pages.client.post(SESSION_PATH, json={"token": ADMIN})
        own = {PROOF: "1", "Sec-Fetch-Site": "same-origin"}
        for headers in (
            {},
            {PROOF: "1", "Sec-Fetch-Site": "cross-site"},
            {"Origin": "https://evil"},
        ):
            assert (await pages.client.post(PATH, headers=headers)).status_code == 403
        assert (await pages.client.post(PATH, headers=own)).status_code == 200


# ---- how a stream ends


async def test_a_stream_ends_when_a_right_is_withdrawn() -> None:
    for withdrawn in (OF_LOG, OF_WORKLOAD):
        async with log_pages() as pages:
            pages.access.know("eve-token", "eve", OF_WORKLOAD, OF_LOG)
            async with pages.opened("eve-token") as events:
                await events.text("two\n")
                pages.access.granted["eve"].discard(withdrawn)
                await asyncio.sleep(pages.pod_logs.limits.trust_seconds)
                pages.log.write(b"secret")
                text, reason = await events.rest()
            assert (text, reason.partition(":")[0]) == ("", "You may no longer read this log")
            await pages.until_closed()


async def test_a_stream_ends_at_sign_out_and_with_its_token() -> None:
    async with log_pages() as pages:
        await pages.client.post(SESSION_PATH, json={"token": ADMIN})
        own = {PROOF: "1", "Sec-Fetch-Site": "same-origin"}
        session = {**own, "Authorization": ""}
        async with pages.opened() as of_token:
            await of_token.text("two\n")
            del pages.access.callers[ADMIN]
            await asyncio.sleep(pages.pod_logs.limits.known_seconds)
            pages.log.write(b"secret")
            assert await of_token.rest() == ("", SIGNED_OUT)
        query = {"follow": "on"}
        async with pages.client.stream("POST", PATH, params=query, headers=own) as answer:
            of_session = LogEvents(answer)
            await of_session.text("secret")
            await pages.client.delete(SESSION_PATH, headers=session)
            await asyncio.sleep(pages.pod_logs.limits.known_seconds)
            pages.log.write(b"more")
            assert await of_session.rest() == ("", SIGNED_OUT)
        await pages.until_closed()


async def test_a_stream_ends_while_the_rights_cannot_be_checked() -> None:
    async with log_pages() as pages, pages.opened() as events:
        await events.text("two\n")
        pages.access.down = True
        await asyncio.sleep(pages.pod_logs.limits.known_seconds)
        pages.log.write(b"secret")
        assert await events.rest() == ("", UNCHECKED)


async def test_a_stream_ends_with_a_sentence_when_its_source_fails() -> None:
    async with log_pages() as pages:
        for error, sentence in ((ClusterUnavailable("reset"), UNREADABLE), (ObjectGone("x"), GONE)):
            async with pages.opened() as events:
                await events.text("two\n")
                pages.source.down = error
                assert await events.rest() == ("", sentence)
            pages.source.down = None


async def test_a_stop_of_the_server_ends_all_streams_at_once() -> None:
    async with log_pages() as pages, pages.opened() as events:
        await events.text("two\n")
        pages.pod_logs.close()
        assert await events.rest() == ("", CLOSING)


async def test_the_log_is_closed_when_the_viewer_leaves() -> None:
    async with log_pages(limited(known_seconds=PATIENCE)) as pages:
        async with pages.opened() as events:
            await events.text("two\n")
            assert len(pages.source.open) == 1
        await pages.until_closed()
        pages.log.written = b""
        async with pages.opened():  # a silent container
            assert len(pages.source.open) == 1
        await pages.until_closed()


# ---- bounds


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"most_bytes": 1 << 20}, "at most 1 MiB"),
        ({"most_lines": 100}, "100 lines"),
        ({"most_seconds": 0.0}, "lasts at most 0 minutes"),
    ],
)
async def test_a_stream_has_a_last_byte_line_and_second(
    limits: dict[str, Any], sentence: str
) -> None:
    rates = {"bytes_per_second": 1e9, "all_bytes_per_second": 1e9}
    async with log_pages(limited(**limits, **rates)) as pages:
        pages.log.write(b"%s\n" % (b"0" * 999) * 5000)
        async with pages.opened(tail="5000") as events:
            text, reason = await events.rest()
        assert sentence in reason
        assert len(text) <= 1 << 20
        await pages.until_closed()


async def test_open_streams_are_limited_for_a_viewer_and_for_the_replica() -> None:
    async with log_pages(limited(streams=3, of_caller=2)) as pages, AsyncExitStack() as streams:
        pages.access.know("second", "second", OF_WORKLOAD, OF_LOG)

        async def opened(token: str) -> int:
            events = await streams.enter_async_context(pages.opened(token))
            return events.answer.status_code

        assert [await opened(ADMIN) for _ in range(3)] == [200, 200, 429]
        assert [await opened("second") for _ in range(2)] == [200, 429]
        assert len(pages.source.open) == 3
        refused = await pages.refused()
        assert "has 2 open logs already" in refused["detail"]
        await streams.aclose()
        await pages.until_closed()
        assert await opened("second") == 200


async def test_a_viewer_opens_logs_at_a_limited_rate() -> None:
    async with log_pages(limited(opened_per_second=1e-6, opened_burst=2)) as pages:
        pages.log.end()
        for _ in range(2):
            async with pages.opened() as events:
                await events.rest()
        assert "opens logs too often" in (await pages.refused())["detail"]
        assert (await pages.client.get(PATH, headers=bearer(ADMIN))).status_code == 429
        assert pages.source.open == []


async def test_the_accounts_of_one_namespace_do_not_take_all_streams() -> None:
    async with log_pages(limited(of_namespace=2)) as pages, AsyncExitStack() as streams:
        for number in range(3):
            pages.access.know(f"token-{number}", f"robot-{number}", OF_WORKLOAD, OF_LOG)
        opened = [
            await streams.enter_async_context(pages.opened(f"token-{number}"))
            for number in range(3)
        ]
        assert [events.answer.status_code for events in opened] == [200, 200, 429]
        foreign = "/ui/workloads/uid-job-foreign/pods/uid-foreign-0/logs"
        answer = await pages.client.post(foreign, headers=bearer(ADMIN))
        assert answer.status_code == 200


async def test_an_endless_line_is_divided_and_slowed_and_others_are_served() -> None:
    """By the rate of its stream, which leaves the one of all streams to others."""
    limits = limited(bytes_per_second=1.0, burst_bytes=64 << 10)
    async with log_pages(limits) as pages:
        pages.log.write(b"x" * (10 << 20))
        pages.access.know("second", "second", OF_WORKLOAD, OF_LOG)
        async with pages.opened() as events, pages.opened("second", container="side") as others:
            text = await events.text()
            while len(text) < 64 << 10:
                text += await events.text()
            assert await others.text() == "side\n"
            [mine] = [one for one in pages.source.open if one.container == "main"]
            assert mine.follow
        lines = text.split("\n")[2:]
        assert {len(line) for line in lines[:-1]} == {LONGEST_LINE}
        await pages.until_closed()


async def test_what_a_container_writes_arrives_as_printable_text() -> None:
    written = b"\x1b[31mred\x1b[0m \x1b[2J\x00 \xff <script>alert(1)</script> \xe2\x80\xae\r\n\n\ndata: x\n"
    async with log_pages() as pages:
        pages.log.written = b""
        async with pages.opened() as events:
            pages.log.write(written)
            pages.log.end()
            text, reason = await events.rest()
    assert text == ("red \\u001b[2J\\u0000 \ufffd <script>alert(1)</script> \\u202e\n\n\ndata: x\n")
    assert reason == ENDED
