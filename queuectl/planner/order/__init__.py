"""The queue order, classes of equal gangs in it, and limits in addition to quota."""
