"""Which gangs to evict so that one pending gang provably fits, at the least cost: policy, candidates, bounds, models, search."""
