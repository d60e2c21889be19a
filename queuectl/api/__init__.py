"""REST over the ledger and the configuration; metrics and health. See docs/explanation/architecture.md and docs/reference/openapi.json."""
