"""Classes of jobs by their GPUs: powers of two."""

from __future__ import annotations


def size_class(gpus: int) -> int:
    """The smallest power of two that is at least this number; 0 for none."""
    return 1 << (gpus - 1).bit_length() if gpus else 0


def size_name(most: int) -> str:
    """The numbers of GPUs in a class: ``8`` is ``5-8``."""
    return str(most) if most <= 2 else f"{most // 2 + 1}-{most}"
