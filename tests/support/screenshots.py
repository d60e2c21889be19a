"""Pictures for the documentation."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

from PIL import Image

IMAGES = Path(__file__).parents[2] / "docs" / "images"


def save(screenshot: bytes, target: Path) -> None:
    """Keeps 128 colors, so that the repository stays small, and prints the size of the file."""
    Image.open(BytesIO(screenshot)).convert("RGB").quantize(128).save(target, optimize=True)
    print(f"{target.name}: {target.stat().st_size // 1024} kB", flush=True)
