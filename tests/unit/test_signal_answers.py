"""Whatever a source answers, it is data or it is not an answer: nothing of it ends the controller, and nothing looks idle."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from queuectl.domain.errors import SourceUnavailable
from queuectl.telemetry.signal import exporters
from queuectl.telemetry.signal.exporters import ExporterSource
from queuectl.telemetry.signal.prometheus import PrometheusSource

KNOWN = {("team", "train-0")}


class Answering:
    """A server that answers everything with one text."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.status = 200
        self.body: str | bytes = ""
        self.headers: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.headers.append(self.headers["Authorization"])
                self.rfile.read(int(self.headers["Content-Length"] or 0))
                self.do_GET()

            def do_GET(self) -> None:
                body = outer.body.encode() if isinstance(outer.body, str) else outer.body
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        class Server(HTTPServer):
            def handle_error(self, *_: object) -> None:
                """The client can close the connection early."""

        self.server = Server((host, port), Handler)
        self.port = int(self.server.server_address[1])
        self.url = f"http://{host}:{self.port}"

    @contextmanager
    def serving(self) -> Iterator[Answering]:
        thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield self
        self.server.shutdown()
        self.server.server_close()
        thread.join()


@pytest.fixture
def answering() -> Iterator[Answering]:
    with Answering().serving() as made:
        yield made


def success(*values: str, labels: str = '"namespace":"team","pod":"train-0"') -> str:
    samples = ",".join(f'{{"metric":{{{labels}}},"value":[1,"{value}"]}}' for value in values)
    return f'{{"status":"success","data":{{"resultType":"vector","result":[{samples}]}}}}'


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (502, "<html>Bad Gateway</html>", "HTTP 502 is not an answer"),
        (200, "", "not an answer"),
        (200, '{"status":"succ', "not an answer"),
        (200, '{"data":{}}', "not an answer"),
        (200, success("fast"), "'fast' is not a number"),
        (400, '{"status":"error","error":"parse error"}', "parse error"),
        (401, "unauthorized", "HTTP 401"),
        (200, success("1").encode().replace(b"team", b"\xff"), "not an answer"),
        (200, '{"more":' + "[" * 100_000, "not an answer"),
    ],
    ids=[
        *("not JSON", "empty", "cut off", "no result", "no number", "an error", "unauthorized"),
        *("not UTF-8", "nested"),
    ],
)
async def test_a_malformed_answer_of_prometheus_is_reported(
    answering: Answering, status: int, body: str | bytes, says: str
) -> None:
    answering.status, answering.body = status, body
    source = PrometheusSource(answering.url, rules=False)
    with pytest.raises(SourceUnavailable, match=says):
        await source.sample(120.0, 1000.0, KNOWN)
    await source.close()


@pytest.mark.parametrize(
    "body",
    [success(), success("NaN"), success("+Inf"), success("0", labels=""), '{"status":"success"}'],
)
async def test_an_empty_answer_has_no_data_of_a_pod(answering: Answering, body: str) -> None:
    answering.body = body
    source = PrometheusSource(answering.url, rules=False)
    sample = await source.sample(120.0, 1000.0, KNOWN)
    await source.close()
    assert not [row for row in sample.pods if (row.namespace, row.pod) in KNOWN]


async def test_the_token_is_read_each_time_and_a_deleted_token_is_reported(
    answering: Answering, tmp_path: Path
) -> None:
    answering.body = success()
    token = tmp_path / "token"
    source = PrometheusSource(answering.url, rules=False, token_file=token)
    for text in ("one\n", "two\n"):
        token.write_text(text)
        await source.sample(120.0, 1000.0, set())
    assert set(answering.headers) == {"Bearer one", "Bearer two"}
    for unusable in (b"\xff", "café".encode(), b"one\ntwo"):
        token.write_bytes(unusable)
        with pytest.raises(SourceUnavailable):
            await source.sample(120.0, 1000.0, set())
    token.unlink()
    with pytest.raises(SourceUnavailable, match="token"):
        await source.sample(120.0, 1000.0, set())
    await source.close()


LINE = 'DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="u",namespace="team",pod="train-0"} '


@pytest.mark.parametrize(
    ("body", "gpus", "pods"),
    [
        ("", 0, 0),
        ("<html>", 0, 0),
        ("# TYPE x gauge\nx 1\n", 0, 0),
        (f"{LINE}0.5\n", 1, 1),
        (f"{LINE}0.5 1395066363000\n", 1, 1),  # with a time
        (f"{LINE}fast\n", 1, 0),
        (f"{LINE}NaN\n", 1, 0),
        (f"{LINE}-1\n", 1, 0),
        (f"{LINE}-Inf\n", 1, 0),
        (f"{LINE}", 0, 0),  # cut off
        (LINE.replace("train-0", r"a\"b") + "1\n", 1, 1),
    ],
)
async def test_of_an_exporters_text_only_what_can_be_read_counts(
    answering: Answering, body: str, gpus: int, pods: int
) -> None:
    answering.body = body
    source = ExporterSource([answering.url])
    sample = await source.sample(120.0, 1000.0, KNOWN)
    await source.close()
    assert (sample.gpus, len(sample.pods)) == (gpus, pods)


@pytest.mark.parametrize("used", ["+Inf", "NaN", "-1"])
async def test_memory_of_an_impossible_size_is_unknown(answering: Answering, used: str) -> None:
    memory = LINE.replace("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_FB_USED")
    free = LINE.replace("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_FB_FREE")
    answering.body = f"{LINE}0.5\n{memory}{used}\n{free}1\n"
    source = ExporterSource([answering.url])
    (row,) = (await source.sample(120.0, 1000.0, KNOWN)).pods
    await source.close()
    assert row.memory_held is None


async def test_a_host_stands_for_all_its_addresses_of_the_moment(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a headless Service has an address for each exporter, and another after one was replaced."""
    addresses = ["127.0.0.1"]

    async def resolve(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        if not addresses:
            raise OSError("Name or service not known")
        return [(2, 1, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    answering.body = f"{LINE}0.5\n"
    source = ExporterSource(
        [f"dns+http://exporters.example:{answering.port}/metrics"], scrape_seconds=30.0
    )
    for step in range(4):
        sample = await source.sample(120.0, 1000.0 + 30 * step, KNOWN)
    (row,) = sample.pods
    assert (sample.gpus, row.gpus, row.coverage) == (1, 1, 1.0)
    addresses[:] = ["127.0.0.2"]  # the exporter was replaced: its GPU is still one GPU
    with Answering("127.0.0.2", answering.port).serving() as replacement:
        replacement.body = answering.body
        sample = await source.sample(120.0, 1120.0, KNOWN)
    (row,) = sample.pods
    assert (sample.gpus, row.gpus) == (1, 1)
    addresses.clear()
    with pytest.raises(SourceUnavailable, match=r"exporters\.example"):
        await source.sample(120.0, 1150.0, KNOWN)
    await source.close()


async def test_one_exporter_that_fails_is_a_gap_all_of_them_are_not_an_answer(
    answering: Answering,
) -> None:
    answering.body = f"{LINE}0.5\n"
    source = ExporterSource([answering.url, "http://127.0.0.1:1/metrics"])
    assert len((await source.sample(120.0, 1000.0, KNOWN)).pods) == 1
    answering.status = 503
    with pytest.raises(SourceUnavailable, match="none of 2 answers"):
        await source.sample(120.0, 1030.0, KNOWN)
    await source.close()


async def test_an_exporter_that_never_completes_its_answer_is_a_gap(answering: Answering) -> None:
    ended = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"#")
            await asyncio.sleep(0.05)
        writer.close()
        ended.set()

    answering.body = f"{LINE}0.5\n"
    async with await asyncio.start_server(drip, "127.0.0.1") as slow:
        port = slow.sockets[0].getsockname()[1]
        source = ExporterSource([answering.url, f"http://127.0.0.1:{port}/metrics"], timeout=0.5)
        async with asyncio.timeout(20):
            sample = await source.sample(120.0, 1000.0, KNOWN)
            await ended.wait()
        await source.close()
    assert len(sample.pods) == 1


async def test_an_endless_scrape_is_canceled(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporters, "_MOST", 1 << 20)
    answering.body = f"{LINE}0.0\n" + "# \n" * (1 << 19)
    source = ExporterSource([answering.url])
    with pytest.raises(SourceUnavailable, match="more than 1 MiB"):
        await source.sample(120.0, 1000.0, KNOWN)
    await source.close()


@pytest.mark.parametrize("scrapes", [1, 4], ids=["a new exporter", "a fuller record"])
async def test_a_second_exporter_never_makes_a_gpu_look_less_used(
    answering: Answering, scrapes: int
) -> None:
    """An exporter with a false value for a pod of another node."""
    answering.body = f"{LINE}0.9\n"
    with Answering("127.0.0.1").serving() as wrong_exporter:
        wrong_exporter.body = f"{LINE}0.0\n"
        source = ExporterSource([answering.url, wrong_exporter.url], scrape_seconds=30.0)
        for step in range(4):
            wrong_exporter.status = 200 if step >= 4 - scrapes else 503
            sample = await source.sample(120.0, 1000.0 + 30 * step, KNOWN)
    await source.close()
    (row,) = sample.pods
    assert row.gpus == 1
    assert [row.busy, row.mean] == pytest.approx([0.9, 0.9])
