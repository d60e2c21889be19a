"""Rows about changes of what runs: reclaim of quota, and lost nodes."""

from __future__ import annotations
