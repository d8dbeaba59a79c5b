"""Pure functions of timestamps: durations, clocks, channels and positions."""
