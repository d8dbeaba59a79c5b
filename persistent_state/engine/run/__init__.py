"""A run of an application: queries, steps, deliveries, and the threads that look after them."""
