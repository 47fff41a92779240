"""The callbacks' hooks on every process of a job: an error in one is raised on all, after one and the same step."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from unifit.callbacks.base import HOOKS
from unifit.callbacks.callback_list import CallbackList
from unifit.errors import PeerError
from unifit.peers import Peers, described


class Hooks:
    """Calls the hooks of a CallbackList, which has the same attributes.

    Where the job has several processes, an exception in a hook is held back: the other processes may be on their way
    into the next step's collective, so this one has to come along until they have heard of it. No hook runs here after
    it but `on_train_end`. `meet` raises it.
    """

    def __init__(self, callbacks: CallbackList, peers: Peers):
        self.callbacks, self.peers = callbacks, peers
        self.error: Exception | None = None
        for hook in HOOKS:
            call = getattr(callbacks, hook)
            setattr(self, hook, call if peers.alone else partial(self._held, hook, call))
            setattr(self, f"has_{hook}", getattr(callbacks, f"has_{hook}"))

    @property
    def paused(self) -> bool:
        """Whether a callback has stopped training to go on in a later run."""
        return self.callbacks.paused

    def states(self) -> dict[str, dict[str, Any]]:
        """The callbacks' states by name."""
        return self.callbacks.states()

    def load_states(self, states: dict[str, dict[str, Any]]) -> None:
        """The inverse of `states`."""
        self.callbacks.load_states(states)

    if TYPE_CHECKING:

        def __getattr__(self, hook: str) -> Any: ...

    def _held(self, hook: str, call: Any, *arguments: Any) -> None:
        if self.error is not None and hook != "on_train_end":
            return
        try:
            call(*arguments)
        except Exception as error:
            if self.error is None:
                self.error = error
                self.peers.tell(error, fatal=False)

    def meet(self, where: str, wish: bool = False) -> bool:
        """All processes come here after the same step. Returns whether any of them wishes to stop.

        Raises:
            Exception: What a hook of this process raised.
            PeerError: When a hook of another process raised.
        """
        if self.peers.alone:
            return wish
        mine = {"error": None if self.error is None else described(self.error), "wish": wish}
        met = self.peers.agree(f"hooks/{where}", mine, _together, despite_failure=True)
        if met["errors"]:
            self.peers.forgive()
            # A PeerError here comes of another process' error, which says more.
            if self.error is not None and not isinstance(self.error, PeerError):
                error, self.error = self.error, None
                raise error
            told = "; ".join(f"process {process}: {text}" for process, text in met["errors"])
            raise PeerError(f"A callback failed at '{where}' on another process of the job: {told}")
        return met["wish"]


def _together(given: list[Any]) -> dict[str, Any]:
    errors = [(process, entry["error"]) for process, entry in enumerate(given) if entry["error"] is not None]
    causes = [entry for entry in errors if not entry[1].startswith("PeerError")]
    return {"errors": causes or errors, "wish": any(entry["wish"] for entry in given)}
