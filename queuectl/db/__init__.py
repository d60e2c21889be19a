"""Postgres: the ledger's durable form, its schema, and the embedded server for machines that have none.

The only room that imports SQLAlchemy, asyncpg and alembic. Start with :mod:`queuectl.db.store` (what the loop and the
API call), then :mod:`queuectl.db.tables` and :mod:`queuectl.db.usagetables` (what is stored). Errors leave this room as those of
:mod:`queuectl.domain.errors`.
"""
