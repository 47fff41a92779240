"""From what users pass as data to padded host windows: sources, order, slices, padding."""

from unifit.data.length_buckets import LengthBuckets
from unifit.data.per_process import PerProcess

__all__ = ["LengthBuckets", "PerProcess"]
