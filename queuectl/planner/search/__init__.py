"""Outcomes of one gang: flavors, counts of pods, and splits over flavors."""
