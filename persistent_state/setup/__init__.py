"""The set-up: of the tasks that were added to an application, the order, the checks that need no store, and the plans."""
