"""The base image of a local build, made from Debian's packages: no image registry is needed.

It stands for ``python:3.13-slim``: the same release of Debian and of Python, with pip and without a compiler.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queuectl.localcluster import build
from tests.image.buildkit import BuildKit

_DOCKERFILE: Final = Path(__file__).with_name("base") / "Dockerfile"
_SUITE: Final = "trixie"
_PACKAGES: Final = ("ca-certificates", "python3", "python3-pip")
_LEFT_OUT: Final = (
    "/usr/share/doc/*",
    "/usr/share/locale/*",
    "/usr/share/man/*",
    "/usr/lib/python3*/EXTERNALLY-MANAGED",  # as in the image of Python, pip installs into the image
)


@dataclass(frozen=True)
class BaseImage:
    """An OCI layout with one image."""

    layout: Path

    @property
    def digest(self) -> str:
        [manifest] = json.loads((self.layout / "index.json").read_bytes())["manifests"]
        return str(manifest["digest"])

    def in_place_of(self, name: str) -> list[str]:
        """Arguments of a build that uses this image for ``FROM name``."""
        return [
            *("--oci-layout", f"base={self.layout}"),
            *("--opt", f"context:{name}=oci-layout://base@{self.digest}"),
        ]


def base_image(buildkit: BuildKit) -> BaseImage:
    """The base image from the cache, or made: one minute, once for each recipe."""
    recipe = json.dumps([_SUITE, _PACKAGES, _LEFT_OUT, _DOCKERFILE.read_text()])
    digest = hashlib.sha256(recipe.encode()).hexdigest()
    layout = build.root() / "image" / f"base-{_SUITE}-{digest[:8]}"
    if not layout.exists():
        with tempfile.TemporaryDirectory(prefix=".base-", dir=layout.parent) as folder:
            _make(buildkit, Path(folder)).rename(layout)
    return BaseImage(layout)


def _make(buildkit: BuildKit, folder: Path) -> Path:
    context, layout = folder / "context", folder / "layout"
    context.mkdir()
    shutil.copy(_DOCKERFILE, context)
    left_out = [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
    include = f"--include={','.join(_PACKAGES)}"
    subprocess.run(
        ["mmdebstrap", "--variant=minbase", include, *left_out, _SUITE, context / "root.tar"],
        env=os.environ | {"TMPDIR": str(folder)},
        check=True,
    )
    buildkit.build("--output", f"type=oci,tar=false,dest={layout}", context=context)
    return layout
