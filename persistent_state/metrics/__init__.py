"""Metrics of an application: from its store alone, and from the run itself."""
