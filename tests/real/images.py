"""Images of containers as OCI archives, made of Debian packages: no registry can be reached from a node.

An archive has one layer, the file system that debootstrap makes of a list of packages. It is made once, before the run enters
its sandbox, and cached.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queuectl.localcluster import build
from tests.image import blobs

_RELEASE: Final = "bookworm"
_UNUSED: Final = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "var/cache/apt",
    "var/lib/apt/lists",
)


@dataclass(frozen=True)
class Image:
    """An image of Debian packages.

    Attributes:
        name: its reference, as pods name it.
        packages: packages in addition to the essential ones.
        environment: variables of its processes, as NAME=VALUE.
    """

    name: str
    packages: tuple[str, ...]
    environment: tuple[str, ...] = ()

    @property
    def archive(self) -> Path:
        """The cached OCI archive."""
        digest = hashlib.sha256(repr((_RELEASE, self)).encode()).hexdigest()[:8]
        short = self.name.rpartition("/")[2].replace(":", "-")
        return build.root() / "images" / f"{short}-{digest}.tar"


BASE: Final = Image("localhost/debian:1", ("python3-minimal",))
"""Shell, core utilities and Python. Its container is also the sandbox of a pod."""

PYTORCH: Final = Image(
    "localhost/pytorch:1",
    ("python3-torch",),
    # With Python 3.11, the defaults of this torchrun are invalid. These values are for a rank that does not exist.
    environment=("PET_REDIRECTS=9:3", "PET_TEE=9:3"),
)
"""Debian's PyTorch, which has gloo and needs no GPU."""

IMAGES: Final = (BASE,)
"""The images that each node has at its start."""


def ensure() -> None:
    """Make the archives that are not cached.

    Raises:
        CalledProcessError: debootstrap failed; its output is above.
    """
    for image in (*IMAGES, PYTORCH):
        if not image.archive.exists():
            print(f"e2e-real: making the image {image.name} of Debian packages", file=sys.stderr)
            image.archive.parent.mkdir(parents=True, exist_ok=True)
            with _scratch(image.archive.parent) as scratch:
                _make(image, scratch)


@contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix=".making-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def _make(image: Image, scratch: Path) -> None:
    root, layer, archive = scratch / "root", scratch / "layer.tar", scratch / "archive.tar"
    options = ["--variant=minbase", f"--include={','.join(image.packages)}"]
    # Its mounts end with it, even if it is killed.
    alone = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command = [*alone, "debootstrap", *options, _RELEASE, str(root), _mirror()]
    made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if made.returncode:
        sys.stderr.buffer.write(made.stdout)
        made.check_returncode()
    for path in _UNUSED:
        shutil.rmtree(root / path, ignore_errors=True)
    excluded = [f"--exclude=./{name}/*" for name in ("proc", "sys", "dev")]
    subprocess.run(
        ["tar", "--create", "--numeric-owner", *excluded, f"--file={layer}", "-C", str(root), "."],
        check=True,
    )
    _write_archive(image, layer, archive)
    archive.rename(image.archive)


def _mirror() -> str:
    """The address of the Debian archive from which this machine installs its own packages."""
    form = ["--format", "$(REPO_URI)", "Created-By: Packages", f"Codename: {_RELEASE}"]
    listed = subprocess.run(
        ["apt-get", "indextargets", *form], capture_output=True, text=True, check=True
    )
    return listed.stdout.split()[0]


def _write_archive(image: Image, layer: Path, target: Path) -> None:
    """Write an OCI image layout of one layer as a tar archive."""
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    config = {
        "architecture": _architecture(),
        "os": "linux",
        "config": {
            "Env": ["PATH=/usr/bin:/bin:/usr/sbin:/sbin", *image.environment],
            "Cmd": ["sleep", "infinity"],
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    described = blobs.descriptor(blobs.LAYER, digest, layer.stat().st_size)
    with tarfile.open(target, "w") as archive:
        blobs.add_file(archive, "oci-layout", blobs.as_json({"imageLayoutVersion": "1.0.0"}))
        archive.add(layer, f"blobs/sha256/{digest}")
        blobs.add_image(archive, image.name, config, [described])


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
