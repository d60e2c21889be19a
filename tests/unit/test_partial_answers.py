"""Whatever of a Prometheus' answers is missing, late or odd: a gang is never idle by what is left of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import pytest

from queuectl.domain.errors import SourceUnavailable
from queuectl.domain.queues import IdleReclaim
from queuectl.domain.utilization import GangUse, UseState
from queuectl.state.gpu_holders import HeldGang, HeldPod
from queuectl.state.utilization import UseTracker
from queuectl.telemetry.signal.names import HONORED, NVIDIA
from queuectl.telemetry.signal.prometheus import PrometheusSource
from queuectl.telemetry.signal.queries import PodSignal, Raw

NOW, SCRAPE, RECENT = 100_000.0, 30.0, 120.0
RULE = IdleReclaim(window=600.0, warmup=0.0, memory_window=1200.0)
PODS = tuple(HeldPod("team", f"train-{n}", f"uid-{n}", 8, 1000.0) for n in range(2))
GANG = HeldGang("gang", 1, "queue", RULE, 1000.0, PODS)

Answers = dict[PodSignal, float | None]
IDLE: Answers = {
    PodSignal.BUSY: 0.0,
    PodSignal.MEAN: 0.0,
    PodSignal.GPUS: 8.0,
    PodSignal.AGE: 10.0,
    PodSignal.SHARED: None,
    PodSignal.TENSOR: 0.0,
    PodSignal.MEMORY_BUSY: 0.0,
    PodSignal.MEMORY_HELD: 0.01,
}
"""Of one pod; samples are as many as belong into the window. None = no series."""


def meanings() -> dict[str, tuple[PodSignal, float | None]]:
    """The value and the window of each query; None = no window."""
    found: dict[str, tuple[PodSignal, float | None]] = {}
    for window in (RECENT, RULE.window, RULE.memory_window):
        for value, query in Raw(NVIDIA).pods(HONORED, window).items():
            found[query.text] = (value, None if query.text in found else window)
    return found


class PartialAnswers:
    """A Prometheus over a gang that does nothing, of whose second pod something is not as it should be."""

    def __init__(
        self,
        wrong: Mapping[PodSignal, float | None],
        window: float | None = None,
        interval: float = SCRAPE,
    ) -> None:
        """``wrong``: instead of the usual answer; ``window``: only of queries over it; ``interval``: between samples (seconds)."""
        self.extra: dict[str, Any] = {}
        self._interval = interval
        self._wrong, self._window, self._meanings = wrong, window, meanings()

    def answer(self, query: str) -> dict[str, Any]:
        asked = self._meanings.get(query)
        rows: list[tuple[dict[str, str], float]]
        if asked is None:
            rows = [({}, 16.0)] if query.startswith("count(") else []
        else:
            rows = [
                ({"namespace": "team", "pod": pod.name}, value)
                for number, pod in enumerate(PODS)
                if (value := self._of(number, *asked)) is not None
            ]
        result = [{"metric": metric, "value": [NOW, str(value)]} for metric, value in rows]
        return {"status": "success", "data": {"result": result}, **self.extra}

    def _of(self, number: int, value: PodSignal, window: float | None) -> float | None:
        usual = (window or 0.0) / self._interval if value is PodSignal.SAMPLES else IDLE[value]
        if number == 1 and value in self._wrong and self._window in (None, window):
            return self._wrong[value]
        return usual

    @contextmanager
    def serving(self) -> Iterator[str]:
        answers = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                body = json.dumps(answers.answer(form["query"][0])).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


async def judged(answers: PartialAnswers) -> GangUse:
    """As a leader judges the gang, which it has taken for idle so far."""
    tracker, known = UseTracker(SCRAPE), {pod.key for pod in PODS}
    with answers.serving() as url:
        source = PrometheusSource(url, scrape_seconds=SCRAPE, rules=False)
        try:
            recent = await source.sample(RECENT, NOW, known)
            windows = tracker.windows([GANG], recent)
            longer = {window: await source.sample(window, NOW, known) for window in windows}
            return tracker.judge([GANG], recent, longer)["gang"]
        except SourceUnavailable as error:
            return tracker.nothing([GANG], NOW, str(error))["gang"]
        finally:
            await source.close()


async def test_a_gang_that_does_nothing_is_idle_by_whole_answers() -> None:
    assert (await judged(PartialAnswers({}))).state is UseState.IDLE


@pytest.mark.parametrize(
    ("interval", "samples", "state"),
    [
        (15.0, 40.0, UseState.IDLE),
        (15.0, 33.0, UseState.IDLE),
        (15.0, 24.0, UseState.UNKNOWN),  # more than the setting expects, and 16 are missing
        (25.0, 24.0, UseState.IDLE),
        (SCRAPE, 16.0, UseState.IDLE),
    ],
)
async def test_of_samples_that_are_more_frequent_than_configured_as_many_are_expected_as_lately(
    interval: float, samples: float, state: UseState
) -> None:
    answers = PartialAnswers({PodSignal.SAMPLES: samples}, RULE.window, interval)
    assert (await judged(answers)).state is state


NAN = float("nan")


ODD: list[Answers] = [
    {PodSignal.BUSY: None},
    {PodSignal.BUSY: NAN},
    {PodSignal.BUSY: -1.0},
    {PodSignal.MEAN: -0.1},
    {PodSignal.MEAN: None},
    {PodSignal.SAMPLES: None},
    {PodSignal.SAMPLES: 1.0},
    {PodSignal.GPUS: None},
    {PodSignal.GPUS: 7.0},
    {PodSignal.GPUS: 9.0},
]
OF_NOW: list[Answers] = [
    {PodSignal.AGE: None},
    {PodSignal.AGE: 90.0},  # the exporter is silent, or its clock is behind ours
    {PodSignal.SHARED: 1.0},
    dict.fromkeys((*IDLE, PodSignal.SAMPLES)),
]


@pytest.mark.parametrize(
    ("wrong", "window"),
    [
        *((wrong, None) for wrong in ODD + OF_NOW),
        *((wrong, window) for wrong in ODD for window in (RECENT, RULE.window)),
    ],
    ids=str,
)
async def test_what_is_missing_or_odd_of_one_pod_makes_the_gang_unknown(
    wrong: Answers, window: float | None
) -> None:
    use = await judged(PartialAnswers(wrong, window))
    assert (use.state, use.utilization, use.weight) == (UseState.UNKNOWN, None, None), use.text


@pytest.mark.parametrize(
    ("extra", "state"),
    [
        ({"warnings": ["store 10.0.0.7 is away"]}, UseState.UNKNOWN),
        ({"status": "error", "error": "timed out"}, UseState.UNKNOWN),
        ({"infos": ["metric might not be a counter"]}, UseState.IDLE),
    ],
)
async def test_an_answer_that_is_marked_as_incomplete_is_not_used(
    extra: dict[str, Any], state: UseState
) -> None:
    answers = PartialAnswers({})
    answers.extra = extra
    assert (await judged(answers)).state is state


@pytest.mark.parametrize("missing", [False, True])
async def test_a_gang_whose_memory_is_not_known_must_be_quiet_for_as_long_as_one_that_holds_some(
    missing: bool,
) -> None:
    wrong: Answers = {PodSignal.MEMORY_HELD: None} if missing else {}
    text = (await judged(PartialAnswers(wrong))).text
    assert ("though it holds GPU memory" in text) is missing
    assert f"{RULE.memory_window if missing else RULE.window:.0f} s" in text
