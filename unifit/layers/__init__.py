"""The layers, under Keras' names and arguments."""

from unifit.layers.core import Dense

__all__ = ["Dense"]
