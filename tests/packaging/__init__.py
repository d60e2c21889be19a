"""The wheel, installed alone and with each extra."""
