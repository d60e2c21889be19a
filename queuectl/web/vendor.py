"""``make vendor``: fetches the files of VENDORED.toml through npm, and keeps only files with the digests there."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

STATIC: Final = Path(__file__).with_name("static")
LIST: Final = STATIC / "VENDORED.toml"


def listed() -> list[dict[str, Any]]:
    """The files of VENDORED.toml."""
    files: list[dict[str, Any]] = tomllib.loads(LIST.read_text())["file"]
    return files


def digest(content: bytes) -> str:
    """SHA-256, as in VENDORED.toml."""
    return hashlib.sha256(content).hexdigest()


@contextmanager
def packed(package: str, version: str) -> Iterator[tarfile.TarFile]:
    """A published package, from the registry that npm is set up with; its files are below ``package/``.

    Raises:
        RuntimeError: npm is not installed, or cannot fetch the package.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError("npm is needed to fetch packages")
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", "--silent", f"{package}@{version}"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            raise RuntimeError(f"npm pack {package}@{version}: {done.stderr.strip()[-300:]}")
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
            yield archive


def fetch(package: str, version: str, path: str) -> bytes:
    """One file of a published package. Raises RuntimeError as :func:`packed` does."""
    with packed(package, version) as archive:
        found = archive.extractfile(f"package/{path}")
        return found.read() if found is not None else b""


def main() -> None:
    """Fetch all files; exit with an error if a digest differs."""
    for file in listed():
        content = fetch(file["package"], file["version"], file["path"])
        if digest(content) != file["sha256"]:
            sys.exit(f"{file['name']}: {digest(content)} is not {file['sha256']}")
        (STATIC / file["name"]).write_bytes(content)
        sys.stdout.write(f"{file['name']}: {file['package']} {file['version']}\n")


if __name__ == "__main__":
    main()
