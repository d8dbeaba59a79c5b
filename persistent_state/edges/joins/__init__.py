"""Joins: the rows of two inputs wait, and are joined once the clock has passed them."""
