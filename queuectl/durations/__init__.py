"""How long gangs run: from their limits, from what their users expect, and from finished gangs like them. No I/O."""
