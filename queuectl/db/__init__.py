"""Postgres: the ledger's durable form, its schema, and the embedded server for machines that have none.

The only package that imports SQLAlchemy, asyncpg and alembic. Start with :mod:`queuectl.db.ports` (the methods for the control loop
and the API), then read :mod:`queuectl.db.store` and :mod:`queuectl.db.tables`. The package raises
errors of :mod:`queuectl.domain.errors` only.
"""
