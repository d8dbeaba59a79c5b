"""A run of an application on any engine: its threads, restarts, deliveries, reports and the handle that users get."""
