"""One snapshot as numbers: nodes, topology, what admitted gangs use, and what pending gangs ask for."""
