"""How Hypothesis draws its examples.

`make test` draws the same ones every time, so that a change is judged by what it changed; `make explore` draws fresh ones,
many more of them, and finds what nobody thought of.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("fresh", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("same")
