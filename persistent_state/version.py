"""The version of this package, as setup.cfg and the command line say it."""

__version__ = "0.1.0"
