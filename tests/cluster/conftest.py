"""Fixtures of the cluster tests."""

from tests.support.controlplane import control_plane

__all__ = ["control_plane"]
