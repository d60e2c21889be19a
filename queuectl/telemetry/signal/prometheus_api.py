"""Instant queries of a Prometheus, or of a server with the same API."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Final

import httpx2
import msgspec

from queuectl.domain.errors import SourceUnavailable

_AT_ONCE: Final = 3  # queries; a Prometheus has other readers


class PrometheusSeries(msgspec.Struct):
    """One series of an answer: its labels, and the time and the text of its value."""

    metric: dict[str, str]
    value: tuple[float, str]


class _Data(msgspec.Struct):
    result: list[PrometheusSeries] = []


class _Answer(msgspec.Struct):
    status: str
    data: _Data = msgspec.field(default_factory=_Data)
    error: str = ""
    warnings: list[str] = []  # a remote store did not answer


class PrometheusApi:
    """The connections to one server. It connects lazily."""

    def __init__(
        self,
        url: str,
        *,
        token_file: Path | None = None,
        ca_file: Path | None = None,
        timeout: float = 30.0,
    ) -> None:
        """``url``: without ``/api/v1``. The token is read again for each query; ``timeout``: seconds for one query."""
        self._http = httpx2.AsyncClient(
            base_url=url.rstrip("/"),
            timeout=timeout,
            verify=ssl.create_default_context(cafile=ca_file),
            trust_env=False,
        )
        self._token_file = token_file
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def ask(self, query: str, at: float) -> list[PrometheusSeries]:
        """The series of a query as of ``at`` (unix seconds).

        Raises:
            SourceUnavailable: no answer, an answer in part, or not an answer to a query.
        """
        headers = await self._authorization()
        try:
            async with self._slots:
                response = await self._http.post(
                    "/api/v1/query", data={"query": query, "time": f"{at:.3f}"}, headers=headers
                )
            answer = msgspec.json.decode(response.content, type=_Answer)
        except httpx2.HTTPError as error:
            raise SourceUnavailable(f"Prometheus: {str(error) or type(error).__name__}") from error
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise SourceUnavailable(
                f"Prometheus: HTTP {response.status_code} is not an answer to a query"
            ) from error
        if answer.status != "success":
            raise SourceUnavailable(f"Prometheus refuses {query}: {answer.error}")
        # If a series is missing from only some queries of an evaluation, a busy GPU would look absent, not unknown.
        if answer.warnings:
            raise SourceUnavailable(f"Prometheus answers only in part: {answer.warnings[0]}")
        return answer.data.result

    async def _authorization(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        try:
            token = await asyncio.to_thread(self._token_file.read_text, "ascii")
        except (OSError, UnicodeError) as error:
            raise SourceUnavailable(f"Prometheus: token: {error}") from error
        return {"Authorization": f"Bearer {token.strip()}"}


def sample_number(sample: PrometheusSeries) -> float:
    """The value of a series. Raises SourceUnavailable if it is not a number."""
    try:
        return float(sample.value[1])
    except ValueError as error:
        raise SourceUnavailable(f"Prometheus: {sample.value[1]!r} is not a number") from error
