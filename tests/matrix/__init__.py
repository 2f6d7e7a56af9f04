"""Runs the tests that a version can change on every version that this machine can have: Python and
Django (environments.py), servers and databases of other Debian releases (servers.py, debian.py)."""
