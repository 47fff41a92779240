"""BackupAndRestore: Keras' name for going on after an interruption; fit's own checkpoints do it."""

from __future__ import annotations

import os
from typing import Any

from unifit.callbacks.base import Callback


class BackupAndRestore(Callback):
    """Has fit write checkpoints, and go on from the newest one when the script is started again.

    `fit(..., checkpoint_dir=backup_dir, checkpoint_every=save_freq, checkpoint_keep=1)` in the form of a callback, with
    Keras' arguments. Those of fit can do more.

    Args:
        backup_dir: The folder.
        save_freq: "epoch", a number of steps, or a `datetime.timedelta`.
        delete_checkpoint: Whether it is deleted when the training has come to its end.
    """

    def __init__(self, backup_dir: str | os.PathLike[str], save_freq: Any = "epoch", delete_checkpoint: bool = True):
        self.backup_dir, self.save_freq, self.delete_checkpoint = backup_dir, save_freq, delete_checkpoint
