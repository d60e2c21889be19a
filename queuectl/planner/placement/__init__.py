"""Where the pods of one gang, or of all kept gangs together, can go: fast paths, bounds, and the CP-SAT models."""
