"""Where messages come from: sources that can be read again from a recorded position."""
