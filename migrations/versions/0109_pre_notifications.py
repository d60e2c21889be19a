"""Events for receivers: their outbox, the progress of each receiver, and who receives them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0109_pre"
down_revision = "0108_pre"
branch_labels = None
depends_on = None


def _json(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, postgresql.JSONB(astext_type=sa.Text()), nullable=nullable)


def _key(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(collation="C"), nullable=False)


def _words(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]


def _integers(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger(), nullable=False) for name in names]


def _identity() -> sa.Column[int]:
    return sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False)


def upgrade() -> None:
    op.add_column("workloads", _json("notify", nullable=True))
    op.add_column("workloads", sa.Column("announced_start", sa.Double(), nullable=True))
    op.create_table(
        "notifications",
        _identity(),
        sa.Column("at", sa.Double(), nullable=False),
        *_words("type", "kind"),
        *map(_key, ("namespace", "name")),
        *_words("uid"),
        *map(_key, ("cluster_queue", "user")),
        _json("receivers"),
        *_words("message"),
        _json("details"),
        sa.PrimaryKeyConstraint("id", name=op.f("notifications_pkey")),
        comment="events for receivers, one row for each; deleted when all receivers are past them",
    )
    op.create_table(
        "notification_progress",
        *map(_key, ("receiver", "mode")),
        *_integers("line"),
        sa.Column("claimed_by", sa.Text(), nullable=True),
        sa.Column("claimed_until", sa.Double(), nullable=True),
        sa.Column("claimed_at", sa.Double(), nullable=True),
        sa.Column("retry_at", sa.Double(), nullable=False),
        *_integers("failures"),
        *_words("error"),
        *_integers("delivered", "dropped"),
        sa.Column("dropped_since", sa.Double(), nullable=True),
        sa.Column("dropped_until", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("receiver", "mode", name=op.f("notification_progress_pkey")),
        comment="how far the events of a receiver are delivered, and the replica that delivers them now",
        postgresql_with={"fillfactor": 50},
    )
    op.create_table(
        "announced_budgets",
        *map(_key, ("budget", "month")),
        sa.Column("percent", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("budget", "month", "percent", name=op.f("announced_budgets_pkey")),
        comment="limits of budgets of which an event was written; percent is 80 or 100",
    )
    op.create_table(
        "subscriptions",
        _identity(),
        _key("owner"),
        *_words("scope"),
        *map(_key, ("target", "receiver")),
        _json("events"),
        *_words("mode"),
        sa.PrimaryKeyConstraint("id", name=op.f("subscriptions_pkey")),
        sa.UniqueConstraint("owner", "scope", "target", "receiver", name="subscriptions_owner_key"),
        comment="requests of users to receive events",
    )
    op.create_index("subscriptions_receiver_idx", "subscriptions", ["receiver"])
    op.create_table(
        "addresses",
        _key("user"),
        *_words("address"),
        sa.Column("verified_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("user", name=op.f("addresses_pkey")),
        comment="mail addresses of users, as their identity provider has verified them",
    )
