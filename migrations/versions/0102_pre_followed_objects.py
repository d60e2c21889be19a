"""The report of the leader on objects that own the configuration, and the deletion that a person has confirmed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0102_pre"
down_revision = "0101_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "followed_objects",
        sa.Column("singleton", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("report", JSONB(), nullable=False),
        sa.Column("confirmed", sa.Text(), nullable=False),
        sa.CheckConstraint("singleton", name=op.f("followed_objects_singleton_check")),
        sa.PrimaryKeyConstraint("singleton", name=op.f("followed_objects_pkey")),
        comment="the leader's last report on objects that own the configuration; confirmed is the id of a mass deletion",
    )
    op.execute("INSERT INTO followed_objects (report, confirmed) VALUES ('{}', '')")
