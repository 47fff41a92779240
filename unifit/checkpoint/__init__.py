"""Checkpoints: reading, checking and exporting what `fit(checkpoint_dir=...)` writes."""

from unifit.checkpoint.exporting import export
from unifit.checkpoint.folder import Folder
from unifit.checkpoint.newest import newest
from unifit.checkpoint.reading import Checkpoint
from unifit.checkpoint.torch_files import load_torch

__all__ = ["Checkpoint", "Folder", "export", "load_torch", "newest"]
