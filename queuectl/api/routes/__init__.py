"""One file per group of paths; each offers ``add_routes(...)``."""
