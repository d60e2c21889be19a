"""Writes the members of an OCI archive."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from typing import Any, Final

LAYER: Final = "application/vnd.oci.image.layer.v1.tar"
CONFIG: Final = "application/vnd.oci.image.config.v1+json"
MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"

Document = dict[str, Any]


def as_json(document: Document) -> bytes:
    return json.dumps(document).encode()


def descriptor(media_type: str, digest: str, size: int) -> Document:
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size}


def add_file(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def add_blob(archive: tarfile.TarFile, media_type: str, content: bytes) -> Document:
    """Add a blob by its digest. Returns its descriptor."""
    digest = hashlib.sha256(content).hexdigest()
    add_file(archive, f"blobs/sha256/{digest}", content)
    return descriptor(media_type, digest, len(content))


def add_image(
    archive: tarfile.TarFile, name: str, configuration: Document, layers: list[Document]
) -> None:
    """Add the documents of an image whose layers are in the archive. ``name``: as containerd imports it."""
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": add_blob(archive, CONFIG, as_json(configuration)),
        "layers": layers,
    }
    entry = add_blob(archive, MANIFEST, as_json(manifest))
    entry["annotations"] = {"io.containerd.image.name": name}
    add_file(archive, "index.json", as_json({"schemaVersion": 2, "manifests": [entry]}))
