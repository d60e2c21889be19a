"""The archive of the plugin for krew, and its manifest for a release: ``python -m tests.packaging.krew build/dist [OWNER/NAME]``.

queuectl is a Python program with compiled dependencies for each platform and version of Python, so no archive can run by itself. The archive has
the wheel and a launcher, which installs the wheel in an environment of its own when it runs for the first time.

The manifest names an archive of a release. It is written only for a repository that is given, which is that of the release workflow, and it is
an artifact of the release: nothing in this repository refers to an archive that does not exist.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
import tarfile
from pathlib import Path
from typing import Any, Final

import yaml

from tests.packaging.versions import ROOT, version

NAME: Final = "queuectl"
LAUNCHER: Final = "kubectl-queuectl"
PLATFORMS: Final = ("linux", "darwin")
"""The launcher is a shell script."""
_CAVEATS: Final = """\
It needs uv, or Python 3.11 or newer with venv. The first call installs the client from the archive, and its dependencies from the Python
Package Index, into ~/.cache/queuectl/krew.
"""
_DESCRIPTION: Final = """\
Shows the queues, gangs and nodes of a queuectl server: why a gang is pending, when it is expected to start, and how well it uses its GPUs.
Stops and moves workloads, and changes queues and quotas.
"""


def archive_name() -> str:
    """The name of the archive of this version."""
    return f"{LAUNCHER}-{version()}.tar.gz"


def archive(wheel: Path) -> bytes:
    """A reproducible archive with the launcher, the wheel and the license."""
    files = (
        (LAUNCHER, (Path(__file__).parent / LAUNCHER).read_bytes(), 0o755),
        (wheel.name, wheel.read_bytes(), 0o644),
        ("LICENSE", (ROOT / "LICENSE").read_bytes(), 0o644),
    )
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content, mode in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), mtime=0)


def manifest(content: bytes, repository: str) -> dict[str, Any]:
    """The manifest of krew for an archive that is published in a release of this repository, ``OWNER/NAME``."""
    page = f"https://github.com/{repository}"
    platform = {
        "selector": {"matchExpressions": [{"key": "os", "operator": "In", "values": [*PLATFORMS]}]},
        "uri": f"{page}/releases/download/v{version()}/{archive_name()}",
        "sha256": hashlib.sha256(content).hexdigest(),
        "bin": LAUNCHER,
    }
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": NAME},
        "spec": {
            "version": f"v{version()}",
            "homepage": page,
            "shortDescription": "Queue gangs of GPU pods",
            "description": _DESCRIPTION,
            "caveats": _CAVEATS,
            "platforms": [platform],
        },
    }


def main(folder: str, repository: str = "") -> int:
    """Write the archive for the wheel of a folder next to it, and with a repository the manifest."""
    (wheel,) = Path(folder).glob("*.whl")
    content = archive(wheel)
    (wheel.parent / archive_name()).write_bytes(content)
    if repository:
        text = yaml.safe_dump(manifest(content, repository), sort_keys=False)
        (wheel.parent / f"{NAME}.yaml").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
