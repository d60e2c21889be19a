"""Reports about a snapshot or a plan that no plan depends on."""
