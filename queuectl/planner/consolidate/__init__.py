"""The second, budgeted solve: the same gangs started, fewer whole nodes and domains broken into."""
