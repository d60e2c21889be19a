"""One module per page. Each offers ``routes(site)``."""
