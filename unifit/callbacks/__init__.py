"""Callbacks: observers of a run, one concept a file."""

from unifit.callbacks.base import Callback
from unifit.callbacks.history import History

__all__ = ["Callback", "History"]
