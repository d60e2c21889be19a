"""What one gang can get: flavors, counts of pods, and splits over flavors."""
