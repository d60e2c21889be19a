"""A release as its image: the manifests and migrations that are in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from posixpath import dirname
from typing import Any, Final

import yaml

from queuectl.demo.manifests import Document
from tests.image.archive import Archive

POST: Final = "9001_post"
"""A test-only revision. It removes the default value on which releases before 0017_pre depend."""
_REVISION: Final = f"""
from alembic import op

revision = "{POST}"
down_revision = %r


def upgrade() -> None:
    op.execute('ALTER TABLE workloads ALTER COLUMN "user" DROP DEFAULT')
"""


@dataclass(frozen=True)
class Release:
    """The OCI archive of a release."""

    archive: Archive

    @property
    def image(self) -> str:
        """The name of the image in a pod."""
        return self.archive.name

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

    def with_post_revision(self, folder: Path) -> Release:
        """This release with one more revision, which is the second half of a change."""
        migrations = self.archive.find("*/queuectl/_migrations/versions/*.py")
        newest = max(migrations)
        head = "_".join(newest.rpartition("/")[2].split("_")[:2])
        added = {f"{dirname(newest)}/{POST}_test.py": (_REVISION % head).encode()}
        name = f"{self.image}-post"
        return Release(self.archive.with_files(added, name, folder / "post.tar"))


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
