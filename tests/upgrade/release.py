"""A release as its image: the manifests and migrations that are in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from posixpath import dirname
from typing import Any, Final

import yaml

from queuectl.demo.scenario import Document
from tests.db.test_migrate import REVISION
from tests.image.archive import Archive

PRE: Final = "9001_pre"
POST: Final = "9002_post"
"""Two test-only revisions. The first adds a column, the second removes it."""
_VERSION: Final = "9001.0.0"
_NO_REGISTRATION: Final = b"""

async def _nothing(*_):
    pass


Registration._register = Registration._leave = Registration.beat = _nothing
"""


@dataclass(frozen=True)
class Release:
    """The OCI archive of a release."""

    archive: Archive

    @property
    def image(self) -> str:
        """The name of the image in a pod."""
        return self.archive.name

    @property
    def version(self) -> str:
        """The version of queuectl in the image."""
        [line] = [line for line in self._metadata()[1].splitlines() if line.startswith("Version: ")]
        return line.removeprefix("Version: ")

    def manifests(self) -> list[Document]:
        """The documents of its deploy folder, in their order, without opt-ins."""
        files = self.archive.find("*/queuectl/_deploy/[0-9]*.yaml")
        files |= self.archive.find("*/queuectl/_deploy/base/*.yaml")
        read = {path: list(yaml.safe_load_all(files[path])) for path in sorted(files)}
        kustomizations = [path for path in read if path.endswith("/kustomization.yaml")]
        order = list(read)
        for path in kustomizations:
            [kustomization] = read[path]
            order = [f"{dirname(path)}/{name}" for name in kustomization["resources"]]
        return [one for path in order for one in read[path] if one]

    def newer(self, folder: Path) -> Release:
        """This release with a newer version, and with the two halves of a change of the schema."""
        newest = max(self.archive.find("*/queuectl/_migrations/versions/*.py"))
        head = "_".join(newest.rpartition("/")[2].split("_")[:2])
        path, metadata = self._metadata()
        added = {path: metadata.replace(f"Version: {self.version}\n", f"Version: {_VERSION}\n", 1)}
        for revision, down, change in ((PRE, head, "ADD extra text"), (POST, PRE, "DROP extra")):
            added[f"{dirname(newest)}/{revision}_test.py"] = REVISION.format(
                revision=revision, down=down, statement=f"ALTER TABLE workloads {change}"
            )
        files = {path: text.encode() for path, text in added.items()}
        return self._with_files(files, "newer", folder)

    def without_registration(self, folder: Path) -> Release:
        """This release with replicas that do not register."""
        [(path, module)] = self.archive.find("*/queuectl/db/replicas.py").items()
        return self._with_files({path: module + _NO_REGISTRATION}, "unregistered", folder)

    def _metadata(self) -> tuple[str, str]:
        """The path and the text of the metadata of the package."""
        [(path, text)] = self.archive.find("*/queuectl_k8s-*.dist-info/METADATA").items()
        return path, text.decode()

    def _with_files(self, files: dict[str, bytes], suffix: str, folder: Path) -> Release:
        target = folder / f"{suffix}.tar"
        return Release(self.archive.with_files(files, f"{self.image}-{suffix}", target))


def deployment_on(node: str, release: Release, replicas: int) -> list[Document]:
    """The manifests of a release, with its image, on one node."""
    found = release.manifests()
    for one in found:
        if one["kind"] == "Deployment":
            spec = one["spec"]["template"]["spec"]
            containers: list[dict[str, Any]] = [
                *spec.get("initContainers", []),
                *spec["containers"],
            ]
            for container in containers:
                container["image"] = release.image
            spec["nodeSelector"] = {"kubernetes.io/hostname": node}
            one["spec"]["replicas"] = replicas
    return found
