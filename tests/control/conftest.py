"""A real Postgres for every test of the control loop."""

from tests.support.postgres import database_url, postgres

__all__ = ["database_url", "postgres"]
