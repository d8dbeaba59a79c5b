"""Check what an application needs of this machine and of its store, and say what to do where it is not there."""
