"""Whom to evict so that one blocked gang provably fits, at the least cost: policy, candidates, bounds, models, search."""
