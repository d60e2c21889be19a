"""The interface to CP-SAT, and searches over counts and tuples that use a yes-or-no question."""
