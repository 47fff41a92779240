"""Dtypes of results: TensorFlow promotes none by itself, and host values come in 64 bits."""

import numpy as np
import tensorflow as tf

_INT32_RANGE = np.iinfo(np.int32)


def _is_scalar(x):
    return isinstance(x, (bool, int, float)) and not isinstance(x, np.generic)


def _promoted_dtype(values):
    """The dtype of a result of arrays and weak Python scalars."""
    dtypes = {x.dtype if tf.is_tensor(x) else tf.as_dtype(x.dtype) for x in values if not _is_scalar(x)}
    scalars = [x for x in values if _is_scalar(x)]
    floats = {d for d in dtypes if d.is_floating}
    if floats:
        widest = max(floats, key=lambda d: d.size)
        return tf.float32 if widest.size == 2 and len(floats) > 1 else widest
    if any(isinstance(x, float) for x in scalars):
        return tf.float32
    integers = {d for d in dtypes if d.is_integer}
    if not integers:
        return tf.bool if all(isinstance(x, bool) for x in scalars) else tf.int32
    if len(integers) == 1:
        return integers.pop()
    promoted = tf.as_dtype(np.result_type(*(d.as_numpy_dtype for d in integers)))
    return promoted if tf.int64 in integers or promoted.size < 8 else tf.int32


def promote(*values):
    """Tensors of one dtype. Equal dtypes, the usual case, pass at once."""
    if all(tf.is_tensor(x) for x in values) and len({x.dtype for x in values}) == 1:
        return values
    operands = [x if tf.is_tensor(x) or _is_scalar(x) else host_array(x, None) for x in values]
    dtype = _promoted_dtype(operands)
    return [tf.cast(x, dtype) if tf.is_tensor(x) else tf.convert_to_tensor(x, dtype) for x in operands]


def host_array(x, dtype):
    """A new NumPy array of `x`, in the default dtypes unless `dtype` says otherwise."""
    x = np.array(x)
    if x.dtype == np.float64:
        return x.astype(np.float32) if dtype is None else x
    if x.dtype == np.int64 and dtype in (None, "int32"):
        if x.size and (x.max() > _INT32_RANGE.max or x.min() < _INT32_RANGE.min):
            raise OverflowError(f"Integers up to {np.abs(x).max()} do not fit int32; pass dtype='int64' or 'float32'.")
        return x.astype(np.int32)
    return x
