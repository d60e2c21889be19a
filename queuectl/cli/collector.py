"""Python's collector of reference cycles, told how this program makes objects."""

from __future__ import annotations

import gc


def calm_the_collector() -> None:
    """Look for reference cycles less often, and never again among what there is now.

    Hardly any cycles are made, and imports, as a rush of gangs, make objects by the ten thousand that stay. With the
    interpreter's thresholds the collector took a quarter of the controller's processor time in a rush, and a sixth of its
    imports.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
