"""Dependencies: known vulnerabilities are found where the database answers, and each license is known."""

from __future__ import annotations

import json
import re
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from queuectl.distribution import DISTRIBUTION
from tests.support.audit import ROOT, audit

VULNERABLE = "jinja2"
ADVISORY = {
    "id": "PYSEC-0000-1",
    "modified": "2026-01-01T00:00:00Z",
    "published": "2026-01-01T00:00:00Z",
    "summary": "templates run code",
    "affected": [
        {
            "package": {"ecosystem": "PyPI", "name": VULNERABLE},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}]}],
        }
    ],
}


@contextmanager
def database(*vulnerable: str, status: int = 200) -> Iterator[tuple[str, list[str]]]:
    """One that answers as OSV does; its URL, and the packages that it was asked about."""
    asked: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            names = [query["package"]["name"] for query in body["queries"]]
            asked.extend(names)
            known = [{key: ADVISORY[key] for key in ("id", "modified")}]
            self.say({"results": [{"vulns": known} if n in vulnerable else {} for n in names]})

        def do_GET(self) -> None:
            self.say(ADVISORY)

        def say(self, answer: object) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_known_vulnerability_of_a_locked_package_fails(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with database(VULNERABLE) as (url, asked):
        assert audit(required=False, service=url) == 1
    assert {VULNERABLE, "asyncpg", "kubernetes-asyncio", "pytest"} <= set(asked)
    said = capsys.readouterr().out
    assert VULNERABLE in said
    assert "PYSEC-0000-1" in said


def test_without_a_finding_it_passes() -> None:
    with database() as (url, asked):
        assert audit(required=True, service=url) == 0
    assert len(asked) > 50


@pytest.mark.parametrize("status", [None, 503])
def test_an_unavailable_database_is_reported_and_fails_only_where_it_is_required(
    status: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with database(status=status or 200) as (url, _):
        away = "http://127.0.0.1:1" if status is None else url
        assert audit(required=False, service=away) == 0
        assert "NOT CHECKED" in capsys.readouterr().out
        assert audit(required=True, service=away) != 0
        assert "NOT CHECKED" in capsys.readouterr().out


def test_a_lock_that_cannot_be_read_fails(tmp_path: Path) -> None:
    assert audit(required=False, service="http://127.0.0.1:1", project=tmp_path) != 0


def test_each_file_of_the_lock_has_a_hash_and_the_build_uses_the_lock() -> None:
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    fetched = [package for package in lock["package"] if "registry" in package["source"]]
    assert len(fetched) == len(lock["package"]) - 1  # all but the project itself
    for package in fetched:
        files = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else ())]
        assert files
        assert all(file["hash"].startswith("sha256:") for file in files), package["name"]
    syncs = re.findall(r"uv sync (.*)", (ROOT / "Dockerfile").read_text())
    assert syncs
    assert all("--frozen" in options for options in syncs)


# ---- licenses


ALLOWED = ("Apache", "BSD", "ISC", "MIT", "PSF", "Python Software Foundation", "Unlicense")
"""Each lets the program be distributed under its own license."""
WEAK_COPYLEFT = {"certifi": "Mozilla Public License 2.0"}
"""Used unchanged, as a separate package."""


def runtime(name: str, extras: frozenset[str] = frozenset()) -> Iterator[Distribution]:
    """A distribution and all that it needs to run here, each once or more."""
    found = distribution(name)
    yield found
    for line in found.requires or ():
        needed = Requirement(line)
        wanted = [{"extra": extra} for extra in (*extras, "")]
        if needed.marker is None or any(needed.marker.evaluate(one) for one in wanted):
            yield from runtime(needed.name, frozenset(needed.extras))


def license_of(found: Distribution) -> str:
    """The license that its metadata states."""
    metadata: Any = found.metadata
    classified = [c for c in metadata.get_all("Classifier") or () if c.startswith("License ::")]
    lines = [metadata.get("License-Expression") or "", *classified, metadata.get("License") or ""]
    return next((line.splitlines()[0] for line in lines if line), "")


def test_every_package_the_program_runs_on_has_a_license_that_goes_with_its_own() -> None:
    licenses = {found.name.lower(): license_of(found) for found in runtime(DISTRIBUTION)}
    assert len(licenses) > 20
    odd = {name: text for name, text in licenses.items() if not any(a in text for a in ALLOWED)}
    assert {name: odd[name] for name in odd if WEAK_COPYLEFT.get(name, "?") not in odd[name]} == {}
