"""Reports about a snapshot or a plan. Planning does not use them."""
