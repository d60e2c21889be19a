"""Capacity and quota during one cycle: what is free, what is reserved, where gangs are placed."""
