"""Where the values of a task at a clock go."""
