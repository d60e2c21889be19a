"""The driver of Kueue's workloads: its HTTP client, its reader of metrics, and the mixes in the names of both sides."""

from __future__ import annotations

import asyncio
import json
import ssl
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from queuectl.localcluster.certificates import Authority
from queuectl.localcluster.client import tls
from tests.bench.kueue.figures import Reading, figures, writes_in
from tests.bench.kueue.mix import read
from tests.bench.kueue.peer import API, redirected, translated
from tests.bench.kueue.runner import Life, Runner
from tests.bench.kueue.wire import Address, Pool, Watch, request, whole
from tests.bench.stage import Cost

CHUNKED = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n0\r\n\r\n"
SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}\n"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.create("bench-authority")


@asynccontextmanager
async def server(
    authority: Authority, folder: Path, serve: Callable[[Reader, Writer], Awaitable[None]]
) -> AsyncIterator[Address]:
    pair = authority.server("bench")
    pair.save(folder / "tls.crt", folder / "tls.key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")

    async def once(reader: Reader, writer: Writer) -> None:
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(once, "127.0.0.1", 0, ssl=context)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        yield Address("127.0.0.1", port, tls(authority.pair.certificate, None))


async def read_request(reader: Reader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    [length] = [line for line in head.split(b"\r\n") if line.startswith(b"content-length")]
    return await reader.readexactly(int(length.split(b":")[1]))


@pytest.mark.parametrize("answer", [CHUNKED, SIZED])
def test_an_answer_is_whole_at_its_last_byte_and_not_before(answer: bytes) -> None:
    assert [whole(answer[:n]) for n in range(len(answer) + 1)] == [False] * len(answer) + [True]


async def test_a_pool_answers_every_request_over_its_few_connections(
    authority: Authority, tmp_path: Path
) -> None:
    connections: list[Writer] = []

    async def serve(reader: Reader, writer: Writer) -> None:
        connections.append(writer)
        while True:
            body = await read_request(reader)
            for piece in (CHUNKED[:30], CHUNKED[30:-3], CHUNKED[-3:] if body else b""):
                writer.write(piece)
                await writer.drain()

    answers: dict[int, int] = {}
    done, failures = asyncio.Event(), list[Exception]()
    async with server(authority, tmp_path, serve) as address:

        def failed(error: Exception) -> None:
            failures.append(error)
            done.set()

        pool = Pool(address, 3, failed)

        def answered(number: int, status: int) -> None:
            assert number not in answers
            answers[number] = status
            if len(answers) == 20:
                done.set()

        for number in range(20):
            data = request("POST", "/jobs", b"body", {"content-type": "application/json"})
            pool.send(data, lambda status, _, number=number: answered(number, status))  # type: ignore[misc]
        await done.wait()
        pool.close()
    assert (failures, len(connections)) == ([], 3)
    assert answers == dict.fromkeys(range(20), 201)


async def test_a_pool_opens_again_what_the_server_closed_while_idle(
    authority: Authority, tmp_path: Path
) -> None:
    async def serve(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(SIZED)

    statuses = asyncio.Queue[int | Exception]()
    async with server(authority, tmp_path, serve) as address:
        pool = Pool(address, 1, statuses.put_nowait)
        for _ in range(3):
            pool.send(request("PUT", "/", b"x", {}), lambda status, _: statuses.put_nowait(status))
            assert await statuses.get() == 200
            await asyncio.sleep(0.05)  # until the end of the connection has come
        pool.close()
    assert statuses.empty()


async def test_a_pool_reports_a_request_without_an_answer(
    authority: Authority, tmp_path: Path
) -> None:
    async def serve(reader: Reader, writer: Writer) -> None:
        await read_request(reader)

    failures = asyncio.Queue[Exception]()
    async with server(authority, tmp_path, serve) as address:
        pool = Pool(address, 1, failures.put_nowait)
        pool.send(request("PUT", "/", b"x", {}), lambda status, _: pytest.fail(str(status)))
        assert isinstance(await failures.get(), ConnectionError)


async def test_a_watch_is_lines_until_the_server_ends_it(
    authority: Authority, tmp_path: Path
) -> None:
    async def serve(reader: Reader, writer: Writer) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        assert asked.startswith(b"GET /jobs?watch=true HTTP/1.0\r\n")
        for piece in (b"HTTP/1.0 200 OK\r\n\r", b'\n{"a":1}\n{"b"', b":2}\n"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)

    lines: list[bytes] = []
    async with server(authority, tmp_path, serve) as address:
        await Watch.follow(address, "/jobs?watch=true", lines.append)
    assert lines == [b'{"a":1}', b'{"b":2}']


async def test_a_refused_watch_is_an_error(authority: Authority, tmp_path: Path) -> None:
    async def serve(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 403 Forbidden\r\n\r\nno rights")

    async with server(authority, tmp_path, serve) as address:
        with pytest.raises(ConnectionError, match="no rights"):
            await Watch.follow(address, "/jobs", lambda _: None)


def test_writes_are_counted_by_resource_and_reads_are_not() -> None:
    def line(verb: str, resource: str, subresource: str, code: int, count: str) -> str:
        return (
            f'apiserver_request_total{{code="{code}",resource="{resource}",'
            f'subresource="{subresource}",verb="{verb}"}} {count}'
        )

    text = "\n".join(
        [
            "# TYPE apiserver_request_total counter",
            line("POST", "jobs", "", 201, "15000"),
            line("PATCH", "jobs", "", 200, "1.5e+04"),
            line("PATCH", "jobs", "", 409, "3"),
            line("APPLY", "workloads", "status", 200, "7"),
            line("LIST", "jobs", "", 200, "99"),
            'apiserver_request_duration_seconds_count{verb="POST"} 5',
        ]
    )
    assert writes_in(text) == {"jobs": 30_003, "workloads/status": 7}


@pytest.mark.parametrize("name", ["baseline", "tas", "large-scale"])
def test_kueue_runs_the_same_mix_in_its_own_names(name: str) -> None:
    ours = read(name, 0.01)
    theirs = translated(ours)
    assert "queuectl" not in json.dumps([theirs.config, [one.document for one in theirs.arrivals]])
    assert {one["apiVersion"] for one in theirs.config} == {API}
    back = json.dumps([one.document for one in theirs.arrivals])
    assert json.loads(back.replace("kueue.x-k8s.io/", "queuectl.dev/")) == [
        one.document for one in ours.arrivals
    ]
    assert [(one.at, one.runtime, one.cpu) for one in theirs.arrivals] == [
        (one.at, one.runtime, one.cpu) for one in ours.arrivals
    ]


def test_webhooks_of_the_peers_service_are_called_on_loopback_and_nothing_else_changes() -> None:
    def service(path: str) -> dict[str, object]:
        return {"service": {"namespace": "system", "name": "webhook-service", "path": path}}

    def here(path: str) -> dict[str, object]:
        return {"url": f"https://127.0.0.1:9443{path}", "caBundle": "Y2E="}

    def webhooks(client: dict[str, object]) -> dict[str, object]:
        return {
            "kind": "MutatingWebhookConfiguration",
            "webhooks": [
                {"name": "job", "clientConfig": client, "rules": [{"resources": ["jobs"]}]}
            ],
        }

    def definition(client: dict[str, object]) -> dict[str, object]:
        conversion = {"strategy": "Webhook", "webhook": {"clientConfig": client}}
        return {"kind": "CustomResourceDefinition", "spec": {"conversion": conversion}}

    given = [webhooks(service("/mutate")), definition(service("/convert")), {"kind": "Role"}]
    found = redirected(given, 9443, "Y2E=")
    assert found == [webhooks(here("/mutate")), definition(here("/convert")), {"kind": "Role"}]
    assert given[0] == webhooks(service("/mutate"))


def test_figures_of_a_run_exclude_the_writes_of_the_driver_and_show_its_delay() -> None:
    mix = read("baseline", 0.01)
    runner = Runner(mix, "https://127.0.0.1:1", ssl.create_default_context(), print)
    small = next(one for one in mix.arrivals if one.klass == "small")
    runner.lives = {
        ("q", name): Life(
            small,
            created=small.at + answered,
            seen=small.at + 0.5,
            admissions=[small.at + 1.0, small.at + 3.0],
            evictions=1,
            held=2.0,
            ended=small.at + 3.0 + small.runtime + late,
            finished=small.at + 4.0 + small.runtime,
        )
        for name, answered, late in (("a", 0.25, 0.0), ("b", 0.75, 0.5))
    }
    runner.writes = {"create": 2, "finish": 2, "suspend": 1}
    before = Reading({"kube-apiserver": 1.0, "etcd": 1.0}, Counter(jobs=5, events=1))
    after = Reading(
        {"kube-apiserver": 4.0, "etcd": 2.0},
        Counter({"jobs": 10, "jobs/status": 3, "events": 3, "leases": 1}),
    )
    found = figures(mix, runner, 10.0, Cost(), before, after, own=0.5)
    assert found.writes == {"events": 2, "jobs": 3, "leases": 1}
    assert (found.all_writes, found.events) == (11, 2)
    assert found.cpu == {"kube-apiserver": 3.0, "etcd": 1.0, "runner": 0.5}
    assert found.waits == {"small": pytest.approx((0.75 + 0.25) / 2)}
    assert found.delays == {"small": pytest.approx(1.0)}
    nominal = sum(queue.nominal for queue in mix.queues)
    assert found.usage == pytest.approx(100 * 2 * 2.0 * small.cpu / (10.0 * nominal))
    assert found.evictions == 2
    assert (found.creations.mean, found.creations.worst) == pytest.approx((0.5, 0.75))
    assert (found.sights.mean, found.sights.worst) == pytest.approx((0.125, 0.25))
    assert (found.ends.mean, found.ends.worst) == pytest.approx((0.25, 0.5))
