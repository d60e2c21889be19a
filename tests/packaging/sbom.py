"""``make dist``: the software bill of materials (SBOM) of queuectl, in the format CycloneDX.

uv lists the packages of ``uv.lock`` that queuectl needs with the extra ``server``, as in the image. This module adds the files of
other projects that the wheel holds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

from uv import find_uv_bin

from tests.packaging.versions import ROOT

_VENDORED: Final = "queuectl/web/static/VENDORED.toml"
_EXPORT: Final = ("export", "--quiet", "--frozen", "--no-dev", "--extra", "server")
_FORMAT: Final = ("--format", "cyclonedx1.5", "--preview-features", "sbom-export")


def bill_of_materials(root: Path = ROOT) -> dict[str, Any]:
    """The SBOM as a CycloneDX document."""
    command = [find_uv_bin(), *_EXPORT, *_FORMAT]
    document: dict[str, Any] = json.loads(subprocess.check_output(command, cwd=root))
    components = document["components"]
    files = tomllib.loads((root / _VENDORED).read_text())["file"]
    packages = {(file["package"], file["version"], file["license"]) for file in files}
    components.extend(_vendored(*package) for package in sorted(packages))
    return document


def _vendored(package: str, version: str, spdx_id: str) -> dict[str, Any]:
    url = f"pkg:npm/{package}@{version}"
    return {
        "type": "library",
        "bom-ref": url,
        "name": package,
        "version": version,
        "purl": url,
        "licenses": [{"license": {"id": spdx_id}}],
    }


def main(output: str) -> int:
    """Write the SBOM to a file."""
    Path(output).write_text(json.dumps(bill_of_materials(), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
