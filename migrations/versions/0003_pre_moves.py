"""An index of the moves in the history. A new leader adds up their cost in the last day."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003_pre"
down_revision = "0002_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The table is read once for it; writers wait that long, and no line matches yet."""
    op.create_index(
        "history_moves_idx",
        "history",
        ["at"],
        postgresql_where=sa.text("event = 'Defragmented'"),
    )
