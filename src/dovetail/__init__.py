"""Dovetail: message delivery you can prove."""

from dovetail import _moved

__version__ = "0.1.0"

_moved.install()
