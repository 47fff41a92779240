"""unifit's tensorflow backend: one file per part of the contract, each imported by the door when it is first used."""

import os

# Read when TensorFlow is loaded, so it is set before any file of this package imports it: errors, no notes on start-up.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
