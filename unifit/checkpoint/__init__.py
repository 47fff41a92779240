"""Checkpoints: reading, checking and exporting what `fit(checkpoint_dir=...)` writes."""

from unifit.checkpoint.folder import Folder
from unifit.checkpoint.newest import newest
from unifit.checkpoint.reading import Checkpoint

__all__ = ["Checkpoint", "Folder", "newest"]
