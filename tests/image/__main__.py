"""``make image``: build the Dockerfile of the working tree, or of a commit, into an OCI archive in ``build/``."""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.image.archive import Archive
from tests.image.base_image import base_image
from tests.image.buildkit import running
from tests.image.programs import Unavailable

ROOT: Final = Path(__file__).parents[2]
_BASE: Final = re.compile(r"\bpython:[\w.]+-slim\b")


@dataclass(frozen=True)
class Source:
    """A tree of queuectl with its Dockerfile, and the tag of its image."""

    folder: Path
    tag: str

    @property
    def base(self) -> str:
        """The name of the base image in its Dockerfile."""
        [name] = set(_BASE.findall((self.folder / "Dockerfile").read_text()))
        return str(name)


def version(folder: Path) -> str:
    """The version of a tree of queuectl."""
    return str(tomllib.loads((folder / "pyproject.toml").read_text())["project"]["version"])


@contextlib.contextmanager
def source(ref: str) -> Iterator[Source]:
    """The working tree if ``ref`` is empty, otherwise the tree of that commit. The tag is the version, and names the commit."""
    if not ref:
        yield Source(ROOT, version(ROOT))
        return
    git = ("git", "-C", str(ROOT))
    commit = subprocess.check_output([*git, "rev-parse", "--short=7", f"{ref}^{{commit}}"])
    with tempfile.TemporaryDirectory(prefix="queuectl-source-") as folder:
        tree = subprocess.check_output([*git, "archive", ref])
        subprocess.run(["tar", "-x", "-C", folder], input=tree, check=True)
        yield Source(Path(folder), f"{version(Path(folder))}-{commit.decode().strip()}")


def make(ref: str, output: Path | None) -> Path:
    """Build the image ``queuectl:TAG`` of a tree.

    Returns:
        The OCI archive.
    """
    with source(ref) as tree, running() as buildkit:
        archive = output or ROOT / "build" / "image" / f"queuectl-{tree.tag}.tar"
        archive.parent.mkdir(parents=True, exist_ok=True)
        base = base_image(buildkit).in_place_of(tree.base)
        with tempfile.TemporaryDirectory(prefix=".image-", dir=archive.parent) as folder:
            written = Path(folder) / "archive.tar"
            to = f"type=oci,name=queuectl:{tree.tag},dest={written}"
            buildkit.build(*base, "--output", to, context=tree.folder)
            written.rename(archive)
    return archive


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.image", description=__doc__)
    parser.add_argument("--ref", default="", help="a commit, tag or branch instead of the files")
    parser.add_argument("--output", type=Path, help="the archive to write")
    chosen = parser.parse_args(arguments)
    try:
        made = make(chosen.ref, chosen.output)
    except Unavailable as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"image: {error.cmd[0]} failed with exit code {error.returncode}", file=sys.stderr)
        return 1
    print(Archive(made).summary())
    return 0


if __name__ == "__main__":
    sys.exit(main())
