"""Where the pods of one gang, or of all gangs that a plan admits together, can go: fast paths, bounds, and the CP-SAT models."""
