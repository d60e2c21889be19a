"""A Chromium for the tests of the pages, without anything installed by hand; a server, and a page in it.

In this order: the one ``QUEUECTL_CHROMIUM`` names; one on the path; the one that ``npm`` packs (a headless build with its
libraries), unpacked once into the cache. Where there is none of them, tests marked ``browser`` are skipped and say so.
"""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import brotli
import pytest
from fastapi import FastAPI
from playwright.async_api import Browser, Page, async_playwright, expect

from queuectl.api.server import WebServer
from queuectl.control.listen_address import ListenAddress
from queuectl.localcluster.build import root
from queuectl.web.vendor import fetch, packed

PACKAGE = ("@sparticuz/chromium", "147.0.0")
AXE = ("axe-core", "4.14.1", "axe.min.js")
"""The accessibility scanner: package, version and file, as :func:`queuectl.web.vendor.fetch` takes them."""
NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--font-render-hinting=none")  # fmt: skip
# Of each expectation, in ms: a hang is a failure, a busy machine is not. Five seconds are the default.
expect.set_options(timeout=30_000)


class NoBrowser(Exception):
    """Why it has none."""


@dataclass(frozen=True)
class Chromium:
    """``environment``: what it has to be started with."""

    executable: str
    environment: dict[str, str] = field(default_factory=dict)


def find() -> Chromium:
    """A Chromium; fetched the first time, which takes a few seconds. Raises NoBrowser."""
    named = os.environ.get("QUEUECTL_CHROMIUM")
    if named:
        return Chromium(named)
    for name in NAMES:
        if found := shutil.which(name):
            return Chromium(found)
    return _packed(root() / f"chromium-{PACKAGE[1]}")


def _packed(folder: Path) -> Chromium:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "chromium").exists():
            _unpack(folder)
    library = folder / "al2023" / "lib"
    return Chromium(str(folder / "chromium"), {"LD_LIBRARY_PATH": f"{library}:{folder}"})


def _unpack(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        made = Path(name)
        try:
            with packed(*PACKAGE) as archive:
                archive.extractall(made, filter="data")
        except RuntimeError as error:
            text = f"no chromium on the path, and none to fetch ({error}): set QUEUECTL_CHROMIUM"
            raise NoBrowser(text) from error
        parts = made / "package" / "bin"
        built = made / "built"
        built.mkdir()
        (built / "chromium").write_bytes(brotli.decompress((parts / "chromium.br").read_bytes()))
        (built / "chromium").chmod(0o755)
        for part, into in (("al2023", "al2023"), ("swiftshader", ".")):
            archived = brotli.decompress((parts / f"{part}.tar.br").read_bytes())
            with tarfile.open(fileobj=io.BytesIO(archived)) as archive:
                archive.extractall(built / into, filter="data")
        built.rename(folder)


def launching() -> dict[str, Any]:
    """The arguments with which Playwright launches a Chromium. Raises NoBrowser."""
    found = find()
    return {
        "executable_path": found.executable,
        "env": {**os.environ, **found.environment},
        "args": list(ARGUMENTS),
    }


def scanner() -> str:
    """The accessibility scanner; the test is skipped where it cannot be had."""
    try:
        return fetch(*AXE).decode()
    except RuntimeError as error:
        pytest.skip(str(error))


@asynccontextmanager
async def running() -> AsyncIterator[Browser]:
    """A Chromium that is stopped at the end. Raises NoBrowser."""
    launch = await asyncio.to_thread(launching)
    async with async_playwright() as tools:
        started = await tools.chromium.launch(**launch)
        yield started
        await started.close()


@asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[str]:
    """The address of a server that is stopped at the end."""
    server = WebServer(app, ListenAddress("127.0.0.1", 0))
    task = asyncio.create_task(server.run())
    yield server.url
    server.stop()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def open_page(
    browser: Browser, address: str, *, dark: bool = False, width: int = 1280
) -> Page:
    context = await browser.new_context(
        viewport={"width": width, "height": 844},
        color_scheme="dark" if dark else "light",
        base_url=address,
    )
    return await context.new_page()
