"""Sequences of many lengths as batches of few: padded at their end to the next of a few lengths."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unifit.contract import tree
from unifit.contract.data import Batch, Slice, Source
from unifit.contract.tree import Tree
from unifit.data.fingerprint import fingerprint
from unifit.data.per_process import is_per_process
from unifit.data.position import Position
from unifit.data.resuming import Resumed, keep_marks, resume, resumes
from unifit.errors import ArgumentError, ShapeError

LEFT_ALONE = (
    "An array without positions is left alone with None in its place of padding_values, such as ({'ids': 0, "
    "'features': None}, 0, 0)."
)


class LengthBuckets:
    """Data whose batches differ in the length of their sequences, padded to at most one shape a boundary.

    A batch's length is the size of `axis` in its inputs, x. Every array of the batch with this size there is padded at
    its end, up to the smallest boundary that fits.

    Args:
        source: What yields the batches: whatever `fit` takes as data.
        boundaries: Lengths to pad to, ascending.
        axis: The axis of positions, at least 1.
        padding_values: What x, y and sample_weight are padded with: a number for each, or a tree of numbers shaped as
            the part is. None leaves an array alone, and its size out of account: features without positions, or
            one-hot labels as many as there might be positions.
        mask_padding: Whether added positions are left out of losses with labels for each position, by a sample_weight
            of dtype bool. Batches have no sample_weight then, or a bool one.

    Raises:
        ArgumentError: For boundaries, an axis or values that cannot be meant.

    Example:
        >>> sentences = [np.ones((2, 5), "int32"), np.ones((2, 9), "int32")]
        >>> data = LengthBuckets(lambda: iter(sentences), [8, 16])  # shapes (2, 8) and (2, 16)
    """

    def __init__(
        self,
        source: Any,
        boundaries: Sequence[int],
        *,
        axis: int = 1,
        padding_values: tuple[Tree, Tree, Tree] = (0, 0, 0),
        mask_padding: bool = False,
    ):
        found = list(boundaries)
        if (
            not found
            or not all(isinstance(b, (int, np.integer)) and not isinstance(b, bool) and b > 0 for b in found)
            or any(low >= high for low, high in zip(found, found[1:], strict=False))
        ):
            raise ArgumentError(f"boundaries is {boundaries!r}; it needs ascending whole numbers from 1 on.")
        if not isinstance(axis, int) or isinstance(axis, bool) or axis < 1:
            raise ArgumentError(f"axis is {axis!r}; it needs a whole number of at least 1 (axis 0 holds the rows).")
        if not isinstance(padding_values, (tuple, list)) or len(padding_values) != 3:
            raise ArgumentError(
                f"padding_values is {padding_values!r}; it needs three: for x, y and sample_weight, such as (0, -1, 0)."
            )
        self.source = source
        x, y, weight = padding_values
        self.padding = LengthPadding(tuple(int(b) for b in found), axis, (x, y, weight), bool(mask_padding))


@dataclass(frozen=True)
class LengthPadding:
    """How batches are padded (unifit.contract.data.Padding); the fields are LengthBuckets' arguments."""

    boundaries: tuple[int, ...]
    axis: int
    values: tuple[Tree, Tree, Tree]
    mask: bool

    def length_of(self, batch: Batch) -> int:
        """The batch's length.

        Raises:
            ShapeError: When no input has the axis, or inputs differ there.
        """
        sizes = {
            leaf.shape[self.axis]
            for leaf, value in _pairs(batch.x, self.values[0], "x")
            if leaf.ndim > self.axis and value is not None
        }
        if len(sizes) == 1:
            return sizes.pop()
        shapes = [leaf.shape for leaf in tree.leaves(batch.x)]
        if not sizes:
            raise ShapeError(
                f"LengthBuckets pads axis {self.axis}, which no input that it may pad has: inputs have shapes {shapes}."
            )
        raise ShapeError(
            f"LengthBuckets got inputs of shapes {shapes}: which of the sizes {sorted(sizes)} on axis {self.axis} is "
            f"the sequences' length? {LEFT_ALONE}"
        )

    def bucket_of(self, length: int) -> int:
        """The smallest boundary that fits.

        Raises:
            ShapeError: When none does.
        """
        place = bisect.bisect_left(self.boundaries, length)
        if place == len(self.boundaries):
            raise ShapeError(
                f"A batch has sequences of length {length}; the last of LengthBuckets' boundaries is "
                f"{self.boundaries[-1]}. Add a boundary of at least {length}, or cut the sequences."
            )
        return self.boundaries[place]

    def has_positions(self, leaf: np.ndarray, value: Any, length: int) -> bool:
        """Whether an array holds the batch's positions."""
        return leaf.ndim > self.axis and leaf.shape[self.axis] == length and value is not None

    def padded(self, batch: Batch, length: int) -> Batch:
        """The batch with `length` positions. One without a row of this process, which only pads, may be cut instead."""
        now = self.length_of(batch)

        def fitted(leaf: np.ndarray, value: Any) -> np.ndarray:
            if now == length or not self.has_positions(leaf, value, now):
                return leaf
            room = [slice(None)] * self.axis
            if now > length:
                return leaf[(*room, slice(0, length))]
            longer = np.full((*leaf.shape[: self.axis], length, *leaf.shape[self.axis + 1 :]), value, leaf.dtype)
            longer[(*room, slice(0, now))] = leaf
            return longer

        names = ("x", "y", "sample_weight")
        x, y, weight = (
            _mapped(fitted, node, value, name) for node, value, name in zip(batch[:3], self.values, names, strict=True)
        )
        if self.mask:
            weight = self._mask(batch, min(now, length), length)
        return batch._replace(x=x, y=y, sample_weight=weight)

    def _mask(self, batch: Batch, now: int, length: int) -> Tree:
        """A bool sample_weight that is False at added positions, for labels that have positions."""
        given = tree.leaves(batch.sample_weight)
        if any(leaf.dtype != np.bool_ for leaf in given):
            raise ArgumentError(
                "LengthBuckets got mask_padding=True and batches with a sample_weight that is no mask (or class_weight "
                "was given): one array cannot both scale an element and keep it out of the count. Mark added "
                "positions with the loss' ignore_class instead: padding_values=(0, -1, 0)."
            )
        whole = self.length_of(batch)
        masks = []
        for leaf, value in _pairs(batch.y, self.values[1], "y"):
            mask = np.ones(len(leaf), np.bool_)
            if self.has_positions(leaf, value, whole):
                shape = (*leaf.shape[: self.axis], length)
                mask = np.zeros(shape, np.bool_)
                mask[..., :now] = True
            masks.append(mask)
        if not any(mask.ndim > 1 for mask in masks):
            return batch.sample_weight
        if given:
            if len(given) != len(masks):
                raise ArgumentError(
                    f"LengthBuckets got mask_padding=True, labels for {len(masks)} outputs and {len(given)} masks "
                    "(sample_weight); it needs one for each output, or none."
                )
            masks = [_joined(mask, own, now) for mask, own in zip(masks, given, strict=True)]
        return tree.pack(batch.y, masks)

    def shape_of(self, leaf: np.ndarray, batch: Batch) -> tuple[Any, ...]:
        """An array's shape without its rows, and with "*" for its positions."""
        if leaf.ndim <= self.axis or leaf.shape[self.axis] != self.length_of(batch):
            return leaf.shape[1:]
        return (*leaf.shape[1 : self.axis], "*", *leaf.shape[self.axis + 1 :])


class BucketSource:
    """unifit.contract.data.Source whose batches say how long they are to be; windows pad them.

    Batches of one window need one length, and so do the processes' parts of a batch: so the padding comes last.
    """

    def __init__(self, source: Source, padding: LengthPadding):
        self.source, self.padding = source, padding
        self.num_batches, self.batch_size = source.num_batches, source.batch_size
        self.restartable, self.read_ahead = source.restartable, source.read_ahead
        self.per_process = is_per_process(source)
        self.resumes = resumes(source)
        self._with_positions: list[bool] | None = None

    def epoch(self, number: int, seed: int, own: Slice, first: int = 0) -> Iterator[Batch]:
        return map(self._measured, self.source.epoch(number, seed, own, first))

    def resume(self, position: Position, seed: int, own: Slice) -> Resumed:
        """See unifit.data.resuming.resume."""
        last, rest, read = resume(self.source, position, seed, own)
        return Resumed(None if last is None else self._measured(last), map(self._measured, rest), read)

    def keep_marks(self) -> None:
        """See unifit.data.resuming.keep_marks."""
        keep_marks(self.source)

    def facts(self) -> dict[str, Any]:
        """Those of the data, and the boundaries."""
        return {"boundaries": list(self.padding.boundaries)} | fingerprint(self.source)

    def _measured(self, batch: Batch) -> Batch:
        length = self.padding.length_of(batch)
        self._watch(batch, length)
        return batch._replace(length=self.padding.bucket_of(length), padding=self.padding)

    def _watch(self, batch: Batch, length: int) -> None:
        """Refuses an array that has the batch's length in one batch and not in another: it has no positions."""
        names = ("x", "y", "sample_weight")
        pairs = [
            (name, leaf, self.padding.has_positions(leaf, value, length))
            for name, node, values in zip(names, batch[:3], self.padding.values, strict=True)
            for leaf, value in _pairs(node, values, name)
        ]
        now = [has for _, _, has in pairs]
        if self._with_positions is None:
            self._with_positions = now
        for (name, leaf, has), had in zip(pairs, self._with_positions, strict=False):
            if has != had:
                raise ShapeError(
                    f"LengthBuckets: an array of {name} has shape {leaf.shape} in a batch whose sequences have length "
                    f"{length}, while in the first batch it {'had' if had else 'did not have'} the sequences' length "
                    f"on axis {self.padding.axis}. {LEFT_ALONE}"
                )


def _joined(mask: np.ndarray, own: np.ndarray, now: int) -> np.ndarray:
    """The mask of positions, and False where the data's own mask is."""
    if mask.ndim == 1 or own.ndim > mask.ndim:
        return own
    joined = mask.copy()
    if own.ndim == mask.ndim:
        joined[..., :now] &= own[..., :now]
    else:
        joined &= own.reshape(own.shape + (1,) * (mask.ndim - own.ndim))
    return joined


def _mapped(function: Any, node: Tree, values: Tree, what: str) -> Tree:
    """`function(leaf, value)` over a part; a lone value stands for all leaves below."""
    if node is None:
        return None
    if isinstance(node, dict):
        return {
            key: _mapped(function, node[key], _child(values, key, what), f"{what}[{key!r}]") for key in sorted(node)
        }
    if isinstance(node, (tuple, list)):
        children = [
            _mapped(function, child, _child(values, number, what), f"{what}[{number}]")
            for number, child in enumerate(node)
        ]
        return type(node)(*children) if hasattr(node, "_fields") else type(node)(children)
    if isinstance(values, (dict, tuple, list)):
        raise ArgumentError(f"padding_values has {values!r} for {what}, which is one array; it needs one number.")
    return function(node, values)


def _child(values: Tree, key: Any, what: str) -> Tree:
    if not isinstance(values, (dict, tuple, list)):
        return values
    try:
        return values[key]
    except (KeyError, IndexError, TypeError) as error:
        raise ArgumentError(
            f"padding_values has {values!r} for {what}, and nothing in it for {key!r}; shape it as {what} is."
        ) from error


def _pairs(node: Tree, values: Tree, what: str) -> list[tuple[np.ndarray, Any]]:
    """The leaves of a part and what they are padded with."""
    found: list[tuple[np.ndarray, Any]] = []
    _mapped(lambda leaf, value: found.append((leaf, value)), node, values, what)
    return found
