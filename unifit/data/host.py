"""Whatever holds numbers as host arrays: lists, tables, tensors of any framework; and the dtypes that devices take."""

from __future__ import annotations

from typing import Any

import numpy as np

from unifit.contract import tree
from unifit.contract.tree import Tree
from unifit.data.frameworks import data_module
from unifit.errors import ArgumentError, ShapeError

_INT32 = np.iinfo(np.int32)
_NUMBER = (int, float, complex, str, bytes, np.generic)
_READY = frozenset(np.dtype(kind) for kind in (np.float32, np.int32, np.bool_, np.uint8, np.float16))


def host_tree(given: Any, what: str) -> Tree:
    """`given` with NumPy arrays as its leaves; arrays, memmaps and tensors on the host are not copied.

    A list or tuple of numbers, nested or not, is one array; any other one is a tree.

    Args:
        given: Arrays, tensors, tables, lists of numbers; or tuples, lists and dicts of them.
        what: What it is, for messages: "x".

    Raises:
        ArgumentError: For a leaf that is no array of numbers.
        ShapeError: For a ragged list, or a leaf without a row axis.
    """
    if type(given) is np.ndarray:
        return checked(given, what)
    if given is None:
        return None
    if isinstance(given, dict):
        return {key: host_tree(value, f"{what}[{key!r}]") for key, value in given.items()}
    if isinstance(given, (tuple, list)):
        if _is_numbers(given):
            return checked(_array_of(given, what), what)
        children = [host_tree(child, f"{what}[{number}]") for number, child in enumerate(given)]
        return type(given)(*children) if hasattr(given, "_fields") else type(given)(children)
    return checked(host_array(given, what), what)


def host_array(leaf: Any, what: str) -> np.ndarray:
    """One array, tensor, table or column as a NumPy array.

    Raises:
        ArgumentError: When it is none of them.
    """
    if isinstance(leaf, np.ma.MaskedArray):
        raise ArgumentError(f"{what} is a masked array; pass its data, and the mask as a sample_weight of dtype bool.")
    if isinstance(leaf, (np.ndarray, *_NUMBER)):
        return np.asarray(leaf)
    module = data_module(leaf)
    found = None if module is None else module.to_numpy(leaf)
    if found is not None:
        return found
    if callable(getattr(leaf, "to_numpy", None)):  # pandas and its like
        return np.asarray(leaf.to_numpy())
    if hasattr(leaf, "__array__"):
        return np.asarray(leaf)
    raise ArgumentError(
        f"{what} is a {type(leaf).__module__}.{type(leaf).__qualname__}, which is no array of numbers; convert it to a "
        "NumPy array."
    )


def checked(array: np.ndarray, what: str) -> np.ndarray:
    """The array, if its dtype and rank can be trained on.

    Raises:
        ArgumentError: For objects, strings, dates and complex numbers.
        ShapeError: For a lone number.
    """
    kind = array.dtype.kind
    if kind not in "fiub" and array.dtype.name != "bfloat16":
        hint = {
            "O": "Give every row the same shape, or convert table columns with astype('float32')",
            "M": "Express times as numbers",
            "c": "Pass real and imaginary parts as two channels",
        }.get(kind, "Encode text and categories as integers first")
        raise ArgumentError(f"{what} has dtype {array.dtype}; it needs numbers or bool. {hint}.")
    if array.ndim == 0:
        raise ShapeError(f"{what} is a lone number, without an axis of rows; it needs shape (rows, ...).")
    return array


def _is_numbers(given: Any) -> bool:
    """Whether a list or tuple holds numbers, or lists of them: its entries and the first innermost one tell."""
    if not all(isinstance(entry, (tuple, list, *_NUMBER)) for entry in given):
        return False
    while isinstance(given, (tuple, list)):
        if not given:
            return True
        given = given[0]
    return isinstance(given, _NUMBER)


def _array_of(numbers: Any, what: str) -> np.ndarray:
    try:
        return np.asarray(numbers)
    except ValueError as error:
        raise ShapeError(
            f"{what} is a list whose entries differ in length; it needs one length. Pad them and mask the padding "
            "(sample_weight of dtype bool, mask_zero, or ignore_class)."
        ) from error


def row_count(leaves: Any, what: str) -> int:
    """The one length of arrays with rows on axis 0.

    Raises:
        ShapeError: When lengths differ.
    """
    lengths = [len(leaf) for leaf in leaves]
    if len(set(lengths)) > 1:
        raise ShapeError(f"{what} have different numbers of rows: {lengths}; they need to be equal.")
    return lengths[0] if lengths else 0


def check_int32(array: np.ndarray, what: str = "The data") -> None:
    """Refuses integers that devices would wrap.

    Raises:
        ArgumentError: When an integer does not fit int32.
    """
    if array.size and (array.max() > _INT32.max or array.min() < _INT32.min):
        raise ArgumentError(
            f"{what} holds integers from {array.min()} to {array.max()} ({array.dtype}); devices take int32. Map ids "
            "to a smaller range, or pass floats."
        )


def placed_dtype(dtype: np.dtype) -> np.dtype:
    """Floats become float32, integers int32; bool, uint8 and half floats stay."""
    if dtype in _READY or dtype.name == "bfloat16":
        return dtype
    return np.dtype(np.float32 if dtype.kind == "f" else np.int32)


def place_dtype(array: np.ndarray) -> np.ndarray:
    """The array in the dtype that devices take; itself where it has that already.

    Raises:
        ArgumentError: When an integer does not fit int32, or the dtype is no number.
    """
    if array.dtype in _READY:
        return array
    target = placed_dtype(checked(array, "The data").dtype)
    if target == np.int32:
        check_int32(array)
    return array.astype(target, copy=False)


def rows_of(node: Tree, index: Any) -> Tree:
    """The rows `index` of every leaf."""
    return node[index] if type(node) is np.ndarray else tree.map(lambda leaf: leaf[index], node)
