"""The active backend's functions under one documented surface: see `unifit.contract.ops`, `arrays` and `nn`.

They are the backend's own function objects, bound once, so that a call costs nothing extra.
"""

from typing import TYPE_CHECKING

from unifit.backend import backend
from unifit.contract.arrays import ARRAY_OPS
from unifit.contract.nn import NN_OPS
from unifit.contract.ops import OPS

if TYPE_CHECKING:
    from unifit.contract.arrays import *  # noqa: F403
    from unifit.contract.nn import *  # noqa: F403
    from unifit.contract.ops import *  # noqa: F403

__all__ = [*OPS, *ARRAY_OPS, *NN_OPS]

globals().update({name: getattr(backend.ops, name) for name in OPS})
globals().update({name: getattr(backend.arrays, name) for name in ARRAY_OPS})
globals().update({name: getattr(backend.nn, name) for name in NN_OPS})
