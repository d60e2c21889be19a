"""What fits, as numbers and as rows of a model: counts, bounds, classes of what is alike, and the one model builder."""
