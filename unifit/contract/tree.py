"""Nested tuples, lists and dicts of arrays: the few functions that host batches need. Dicts go in sorted key order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Tree = Any
"""An array, None, or a (named) tuple, list or dict of trees. None is an empty tree."""


def leaves(tree: Tree) -> list[Any]:
    """The tree's arrays, depth first."""
    return list(_walk(tree))


def _walk(tree: Tree) -> Iterator[Any]:
    if tree is None:
        return
    if isinstance(tree, dict):
        for key in sorted(tree):
            yield from _walk(tree[key])
    elif isinstance(tree, (tuple, list)):
        for child in tree:
            yield from _walk(child)
    else:
        yield tree


def map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """`function` over matching leaves of trees of one structure; None stays None."""
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {key: map(function, tree[key], *(other[key] for other in others)) for key in sorted(tree)}
    if isinstance(tree, (tuple, list)):
        children = [map(function, child, *rest) for child, *rest in zip(tree, *others, strict=True)]
        return type(tree)(*children) if hasattr(tree, "_fields") else type(tree)(children)
    return function(tree, *others)


def structure(tree: Tree) -> Tree:
    """The tree with True for each leaf: equal structures compare equal."""
    return map(lambda leaf: True, tree)


def pack(structure_of: Tree, values: list[Any]) -> Tree:
    """The inverse of `leaves`: a tree shaped like `structure_of` with `values` as its leaves."""
    iterator = iter(values)
    return map(lambda leaf: next(iterator), structure_of)
