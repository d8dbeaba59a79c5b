"""Ordered tasks: their messages wait, and are processed once the clock has passed them."""
