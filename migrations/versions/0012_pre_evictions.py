"""An index of the evictions in the history, for the paged list of evictions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012_pre"
down_revision = "0011_pre"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The table is read once for it; writers wait that long."""
    op.create_index(
        "history_evictions_idx",
        "history",
        ["id", "namespace"],
        postgresql_where=sa.text("to_state = 'Evicting'"),
    )
