"""Callbacks: observers of a run, one concept a file."""

from unifit.callbacks.backup_and_restore import BackupAndRestore
from unifit.callbacks.base import Callback
from unifit.callbacks.callback_list import CallbackList
from unifit.callbacks.csv_logger import CSVLogger
from unifit.callbacks.early_stopping import EarlyStopping
from unifit.callbacks.history import History
from unifit.callbacks.lambda_callback import LambdaCallback
from unifit.callbacks.learning_rate_scheduler import LearningRateScheduler
from unifit.callbacks.model_checkpoint import ModelCheckpoint
from unifit.callbacks.progress_bar import ProgressBar
from unifit.callbacks.reduce_lr_on_plateau import ReduceLROnPlateau
from unifit.callbacks.swap_ema_weights import SwapEMAWeights
from unifit.callbacks.tensorboard import TensorBoard
from unifit.callbacks.terminate_on_nan import NonFiniteLossError, TerminateOnNaN
from unifit.callbacks.time_limit import TimeLimit

__all__ = [
    "BackupAndRestore",
    "CSVLogger",
    "Callback",
    "CallbackList",
    "EarlyStopping",
    "History",
    "LambdaCallback",
    "LearningRateScheduler",
    "ModelCheckpoint",
    "NonFiniteLossError",
    "ProgressBar",
    "ReduceLROnPlateau",
    "SwapEMAWeights",
    "TensorBoard",
    "TerminateOnNaN",
    "TimeLimit",
]
