"""Capacity as numbers and as rows of a model: counts, bounds, classes of equal things, and the one model builder."""
