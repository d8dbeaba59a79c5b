"""What one task gives another between two clocks: the changes of its state, windows that have closed, rows in order."""
