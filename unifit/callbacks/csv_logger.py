"""CSVLogger: one row of figures for each epoch."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

from unifit.callbacks.base import Callback
from unifit.processes import warn


class CSVLogger(Callback):
    """Writes "epoch" (from 0) and the logs to a CSV file on the main process, flushed after each epoch.

    The columns are the first epoch's figures by name, with room for validation figures where validation comes later; a
    figure that an epoch does not have is "NA".

    Args:
        filename: The file; its folder is made.
        separator: Between two columns.
        append: Go on with an existing file, under its header, instead of writing it anew.
    """

    def __init__(self, filename: str | os.PathLike[str], separator: str = ",", append: bool = False):
        self.filename, self.separator, self.append = os.fspath(filename), separator, append
        self._file: Any = None
        self._writer: csv.DictWriter[str] | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        if not self.on_main_process:
            return
        path = Path(self.filename)
        path.parent.mkdir(parents=True, exist_ok=True)
        header = None
        if self.append and path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                header = next(csv.reader(file, delimiter=self.separator), None)
        self._file = path.open("a" if self.append else "w", newline="", encoding="utf-8")
        self._writer = None if header is None else self._writer_of(header)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._file is None:
            return
        row = {"epoch": epoch, **(logs or {})}
        if self._writer is None:
            self._writer = self._writer_of(self._columns(logs or {}))
            self._writer.writeheader()
        left_out = [name for name in row if name not in self._writer.fieldnames]
        if left_out:
            warn(f"{self.filename} has no column for {', '.join(left_out)}: left out.", stacklevel=2)
        self._writer.writerow({name: row.get(name, "NA") for name in self._writer.fieldnames})
        self._file.flush()

    def on_train_end(self, logs: Any = None) -> None:
        if self._file is not None:
            self._file.close()
            self._file = self._writer = None

    def _columns(self, logs: Any) -> list[str]:
        names = sorted(logs)
        if self.params.get("validation", False) and not any(name.startswith("val_") for name in names):
            names += [f"val_{name}" for name in names]
        return ["epoch", *names]

    def _writer_of(self, columns: list[str]) -> csv.DictWriter[str]:
        return csv.DictWriter(self._file, columns, delimiter=self.separator)
