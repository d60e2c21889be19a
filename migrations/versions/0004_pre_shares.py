"""The quota that each share of a podset uses, if its pods use several flavors of one resource group."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0004_pre"
down_revision = "0003_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A nullable column needs no rewrite of the table. Null is correct for existing rows: they are not split."""
    comment = "[[pods, {resource: ResourceFlavor}], ...] by rank; null = not split over flavors"
    op.add_column("placements", sa.Column("shares", JSONB(), nullable=True, comment=comment))
