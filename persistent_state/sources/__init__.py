"""Sources of messages, which can be read again from a recorded position."""
