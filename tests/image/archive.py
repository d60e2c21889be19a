"""Reads an OCI archive: its configuration, its layers, and the files of its root file system. Adds a layer to it."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from tests.image import blobs

_MEBIBYTE: Final = 1 << 20
_WHITEOUT: Final = ".wh."


@dataclass(frozen=True)
class Archive:
    """An OCI archive with one image."""

    path: Path

    @cached_property
    def _descriptor(self) -> dict[str, Any]:
        [descriptor] = self._json("index.json")["manifests"]
        return dict(descriptor)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return self._json(_blob(self._descriptor["digest"]))

    @cached_property
    def configuration(self) -> dict[str, Any]:
        return self._json(_blob(self.manifest["config"]["digest"]))

    @property
    def settings(self) -> dict[str, Any]:
        """The user, the environment and the entry point of a container."""
        return dict(self.configuration["config"])

    @property
    def name(self) -> str:
        """The name of the image as containerd imports it."""
        return str(self._descriptor["annotations"]["io.containerd.image.name"])

    def unpack(self, folder: Path) -> None:
        """Write the root file system. Needs root for the owners of files.

        Raises:
            ValueError: a layer removes files of a layer below it, so that they only add to the size.
        """
        with tarfile.open(self.path) as archive:
            for layer in self.manifest["layers"]:
                with tarfile.open(fileobj=archive.extractfile(_blob(layer["digest"]))) as files:
                    removed = [name for name in files.getnames() if _WHITEOUT in name]
                    if removed:
                        raise ValueError(f"{self.path}: a layer removes {', '.join(removed)}")
                    files.extractall(folder, filter="fully_trusted")

    def find(self, pattern: str) -> dict[str, bytes]:
        """The files of the root file system whose path matches a pattern, by path."""
        found: dict[str, bytes] = {}
        with tarfile.open(self.path) as archive:
            for layer in self.manifest["layers"]:
                with tarfile.open(fileobj=archive.extractfile(_blob(layer["digest"]))) as files:
                    for one in files:
                        if one.isfile() and fnmatch(one.name, pattern):
                            content = files.extractfile(one)
                            assert content is not None
                            found[one.name] = content.read()
        return found

    def with_files(self, files: Mapping[str, bytes], name: str, target: Path) -> Archive:
        """Write the image with one more layer, which has these files.

        Args:
            files: the contents by path.
            name: of the new image, as containerd imports it.
            target: the archive to write.
        """
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as packed:
            for path, content in files.items():
                blobs.add_file(packed, path, content)
        with tarfile.open(self.path) as old, tarfile.open(target, "w") as new:
            for member in old:
                if member.name != "index.json":
                    new.addfile(member, old.extractfile(member) if member.isfile() else None)
            added = blobs.add_blob(new, blobs.LAYER, layer.getvalue())
            layers = [*self.manifest["layers"], added]
            root = self.configuration["rootfs"]
            root = root | {"diff_ids": [*root["diff_ids"], added["digest"]]}
            blobs.add_image(new, name, self.configuration | {"rootfs": root}, layers)
        return Archive(target)

    def sizes(self) -> list[tuple[int, int]]:
        """For each layer, its bytes in the archive and the bytes of its files."""
        with tarfile.open(self.path) as archive:
            return [
                (layer["size"], _unpacked(archive, _blob(layer["digest"])))
                for layer in self.manifest["layers"]
            ]

    def summary(self) -> str:
        """The archive, the name, the user and the sizes."""
        sizes = self.sizes()
        lines = [f"{self.path}: {self.name}", f"user {self.settings['User']}"]
        for number, (packed, files) in enumerate(
            [*sizes, tuple(map(sum, zip(*sizes, strict=True)))]
        ):
            label = "total" if number == len(sizes) else f"layer {number + 1}"
            lines.append(
                f"{label}: {packed / _MEBIBYTE:.1f} MiB, files {files / _MEBIBYTE:.1f} MiB"
            )
        return "\n".join(lines)

    def _json(self, member: str) -> dict[str, Any]:
        with tarfile.open(self.path) as archive:
            found = archive.extractfile(member)
            assert found is not None
            return dict(json.load(found))


def _blob(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _unpacked(archive: tarfile.TarFile, member: str) -> int:
    with tarfile.open(fileobj=archive.extractfile(member)) as files:
        return sum(file.size for file in files)
