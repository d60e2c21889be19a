"""A hook of mkdocs: the navigation has the page of each job kind that has one, instead of KIND_PAGES."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig

from queuectl.objects.kinds import KINDS


def on_config(config: MkDocsConfig) -> None:
    folder = Path(config.docs_dir)
    pages = [f"how-to/{kind.lower()}.md" for kind in KINDS]
    config.nav = _filled(config.nav, [page for page in pages if (folder / page).exists()])


def _filled(nav: Any, pages: list[str]) -> Any:
    if isinstance(nav, dict):
        return {title: _filled(inner, pages) for title, inner in nav.items()}
    if isinstance(nav, list):
        return [
            each
            for inner in nav
            for each in (pages if inner == "KIND_PAGES" else [_filled(inner, pages)])
        ]
    return nav
