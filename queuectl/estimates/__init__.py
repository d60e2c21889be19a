"""Expected starts of pending gangs: many simulations of the time from now on, each with other run times. No I/O."""
