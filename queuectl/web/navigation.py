"""The navigation of the pages: four groups, of which the current one shows its pages.

A viewer gets the pages that their rights allow, and the groups in which such a page is. A link of a group leads to its first page.
Each page is at most two links away from any other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol


class Feature(StrEnum):
    """A part of queuectl that not every installation has."""

    SHADOW = "shadow"
    NOTIFICATIONS = "notifications"


class ViewerRights(Protocol):
    """The rights of a viewer that decide about pages; see :class:`queuectl.web.site.AccessScope`."""

    @property
    def nodes(self) -> bool: ...
    @property
    def plan(self) -> bool: ...
    @property
    def usage(self) -> bool: ...
    @property
    def decisions(self) -> bool: ...
    @property
    def audit(self) -> bool: ...
    @property
    def config(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class MenuPage:
    """A page in the navigation.

    Attributes:
        address: its path below ``/ui``.
        name: the text of its link.
        below: further paths whose pages belong to it.
        allowed: whether a viewer gets the link.
        feature: without which the page does not exist; None = it always does.
    """

    address: str
    name: str
    below: tuple[str, ...] = ()
    allowed: Callable[[ViewerRights], bool] = lambda _: True
    feature: Feature | None = None

    def holds(self, path: str) -> bool:
        """Whether the page at this path below ``/ui`` is this one, or one below it."""
        if self.address == "/":
            return path == "/"
        return any(path == one or path.startswith(f"{one}/") for one in (self.address, *self.below))


@dataclass(frozen=True, slots=True)
class MenuGroup:
    """A group of pages, in the order of their links."""

    name: str
    pages: tuple[MenuPage, ...]


_OWN_JOBS: Final = MenuPage("/mine", "My jobs")
_ALL_JOBS: Final = MenuPage("/workloads", "All jobs", ("/search",))
_TIMELINE: Final = MenuPage("/timeline", "Timeline")
_NOTIFICATIONS: Final = MenuPage("/notifications", "Notifications", feature=Feature.NOTIFICATIONS)
_GROUPS: Final = (
    MenuGroup("Jobs", (_OWN_JOBS, _ALL_JOBS, _TIMELINE, _NOTIFICATIONS)),
    MenuGroup(
        "Capacity",
        (
            MenuPage("/", "Overview"),
            MenuPage("/queues", "Queues", ("/cohorts", "/localqueues")),
            MenuPage("/nodes", "Nodes", allowed=lambda access: access.nodes),
            MenuPage("/reservations", "Reservations"),
        ),
    ),
    MenuGroup(
        "Usage",
        (
            MenuPage("/usage", "Usage", allowed=lambda access: access.usage),
            MenuPage("/budgets", "Budgets", allowed=lambda access: access.usage),
            MenuPage("/evictions", "Evictions"),
        ),
    ),
    MenuGroup(
        "Admin",
        (
            MenuPage(
                "/shadow", "Shadow", allowed=lambda access: access.usage, feature=Feature.SHADOW
            ),
            MenuPage("/decisions", "Decisions", allowed=lambda access: access.decisions),
            MenuPage("/whatif", "What-if", allowed=lambda access: access.plan),
            MenuPage("/config", "Configuration", allowed=lambda access: access.config),
            MenuPage("/audit", "Audit", allowed=lambda access: access.audit),
        ),
    ),
)
_WITHOUT_SIGN_IN: Final = (
    MenuGroup("Jobs", (_ALL_JOBS, MenuPage("/mine", "By user"), _TIMELINE, _NOTIFICATIONS)),
    *_GROUPS[1:],
)
"""Without sign-in, no job is the viewer's: the first page is the list of all jobs."""


@dataclass(frozen=True, slots=True)
class Menu:
    """The navigation of one page for one viewer.

    Attributes:
        groups: those with a page that the viewer may see.
        current: the group of this page; None where it is in no group.
        page: the page that is current; None likewise.
    """

    groups: tuple[MenuGroup, ...]
    current: MenuGroup | None
    page: MenuPage | None


def menu_of(
    access: ViewerRights, path: str, *, signs_in: bool, features: Collection[Feature]
) -> Menu:
    """The navigation for a viewer.

    Args:
        access: the rights of the viewer.
        path: of the page, below ``/ui``.
        signs_in: users sign in.
        features: of this process.
    """
    groups = []
    for group in _GROUPS if signs_in else _WITHOUT_SIGN_IN:
        pages = tuple(
            page
            for page in group.pages
            if page.allowed(access) and (page.feature is None or page.feature in features)
        )
        if pages:
            groups.append(MenuGroup(group.name, pages))
    for group in groups:
        for page in group.pages:
            if page.holds(path):
                return Menu(tuple(groups), group, page)
    return Menu(tuple(groups), None, None)
