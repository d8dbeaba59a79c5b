"""Serve a store over HTTP, to be looked at: one page, metrics, and look-ups of keys. Nothing of the store is changed."""
