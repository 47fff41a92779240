"""Distribution intents for users: how the devices of a job share the work."""

from unifit.contract.distribution import DataParallel

__all__ = ["DataParallel"]
