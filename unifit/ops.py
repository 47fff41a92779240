"""The active backend's functions under one documented surface: see `unifit.contract.ops`.

They are the backend's own function objects, bound once, so that a call costs nothing extra.
"""

from typing import TYPE_CHECKING

from unifit.backend import backend
from unifit.contract.ops import OPS

if TYPE_CHECKING:
    from unifit.contract.ops import *  # noqa: F403

__all__ = list(OPS)

globals().update({name: getattr(backend.ops, name) for name in OPS})
