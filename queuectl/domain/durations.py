"""Lengths of time, in seconds."""

from typing import Final

DAY: Final = 86_400.0
