"""Runs a command of an image under runc, as the Deployment's security context has it: read-only root, no capabilities."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.image.archive import Archive


@dataclass(frozen=True)
class Container:
    """The unpacked image: a root file system, and the settings of the image."""

    bundle: Path
    settings: dict[str, Any]

    @classmethod
    def of(cls, archive: Archive, folder: Path) -> Container:
        """Unpack an archive into a folder."""
        (folder / "rootfs").mkdir(parents=True)
        archive.unpack(folder / "rootfs")
        return cls(folder, archive.settings)

    @property
    def root(self) -> Path:
        return self.bundle / "rootfs"

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The entry point of the image with arguments."""
        return self.execute([*self.settings["Entrypoint"], *arguments])

    def execute(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """A command with the user and the environment of the image. It has no network and can only write to /tmp."""
        (self.bundle / "config.json").unlink(missing_ok=True)
        subprocess.run(["runc", "spec", "--bundle", self.bundle], check=True)
        file = self.bundle / "config.json"
        file.write_text(json.dumps(self._specification(json.loads(file.read_text()), command)))
        name = f"queuectl-test-{uuid.uuid4()}"
        return subprocess.run(
            ["runc", "run", "--bundle", self.bundle, name],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def _specification(self, default: dict[str, Any], command: Sequence[str]) -> dict[str, Any]:
        user, group = map(int, self.settings["User"].split(":"))
        process = default["process"] | {
            "terminal": False,
            "user": {"uid": user, "gid": group},
            "args": list(command),
            "env": self.settings["Env"],
            "cwd": self.settings.get("WorkingDir", "/"),
            "capabilities": {},
            "noNewPrivileges": True,
        }
        temporary = {
            "destination": "/tmp",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "nodev", "mode=1777"],
        }
        return default | {
            "process": process,
            "root": {"path": "rootfs", "readonly": True},
            "mounts": [*default["mounts"], temporary],
        }
