"""One cycle: the order in which gangs are considered, what each gets, and the plan that results."""
