"""unifit.contract.recurrent on TensorFlow: a `tf.while_loop` over the steps, with the inputs' products taken out.

Products are in the inputs' dtype. Gates, states and the sums over steps that are the weights' gradients are in float32.

`BlockLSTMV2` was measured against it on a CPU, forward and backward: no gain. cuDNN's kernels exist for GPUs alone, and
take no mask but one that pads at the end.
"""

import tensorflow as tf

from unifit_tensorflow.ops import float32


def lstm(x, h0, c0, kernel, recurrent_kernel, bias, mask=None, reverse=False):
    recurrent_kernel = float32(recurrent_kernel)  # read once, outside of the loop

    def cell(projected, states):
        h, c = states
        i, f, g, o = tf.split(float32(projected) + _product(h, recurrent_kernel, x.dtype), 4, axis=-1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
        return tf.sigmoid(o) * tf.tanh(c), c

    states = _initial(h0, x, recurrent_kernel), _initial(c0, x, recurrent_kernel)
    outputs, (h, c) = _loop(cell, x, states, kernel, bias, mask, reverse)
    return outputs, h, c


def gru(x, h0, kernel, recurrent_kernel, bias, mask=None, reverse=False):
    recurrent_kernel = float32(recurrent_kernel)
    input_bias, recurrent_bias = (None, None) if bias is None else tf.unstack(float32(bias))

    def cell(projected, states):
        (h,) = states
        recurrent = _product(h, recurrent_kernel, x.dtype)
        xz, xr, xn = tf.split(float32(projected), 3, axis=-1)
        hz, hr, hn = tf.split(recurrent if bias is None else recurrent + recurrent_bias, 3, axis=-1)
        z = tf.sigmoid(xz + hz)
        return (z * h + (1 - z) * tf.tanh(xn + tf.sigmoid(xr + hr) * hn),)

    outputs, (h,) = _loop(cell, x, (_initial(h0, x, recurrent_kernel),), kernel, input_bias, mask, reverse)
    return outputs, h


def _product(h, kernel, dtype):
    """`h @ kernel` in `dtype`; float32 in and out, so that the gradients of all steps are added in float32."""
    return float32(tf.matmul(tf.cast(h, dtype), tf.cast(kernel, dtype)))


def _initial(state, x, recurrent_kernel):
    """The given state, or zeros, in float32."""
    if state is not None:
        return float32(state)
    rows = tf.shape(x)[0] if x.shape[0] is None else x.shape[0]
    return tf.zeros((rows, recurrent_kernel.shape[0]))


def _loop(cell, x, states, kernel, bias, mask, reverse):
    """Every step's first state, and the last states, of `cell(x_t @ kernel + bias, states) -> states`."""
    if reverse:
        x, mask = tf.reverse(x, [1]), None if mask is None else tf.reverse(mask, [1])
    if mask is not None:
        x = tf.where(mask[..., None], x, tf.zeros((), x.dtype))
    steps, units = x.shape[1], states[0].shape[-1]
    inputs = _by_step(_projected(x, kernel, bias))
    valid = None if mask is None else _by_step(mask[..., None])

    def body(step, states, outputs):
        after = cell(inputs.read(step), states)
        if valid is not None:
            is_valid = valid.read(step)
            after = tuple(tf.where(is_valid, *pair) for pair in zip(after, states, strict=True))
        return step + 1, after, outputs.write(step, tf.cast(after[0], x.dtype))

    outputs = tf.TensorArray(x.dtype, steps, element_shape=(x.shape[0], units))
    _, states, outputs = tf.while_loop(
        lambda step, *_: step < steps, body, (0, tuple(states), outputs), maximum_iterations=steps
    )
    outputs = tf.transpose(outputs.stack(), (1, 0, 2))
    outputs = tf.ensure_shape(outputs, (x.shape[0], steps, units))
    if mask is not None:
        has_begun = tf.cumsum(tf.cast(mask, tf.int32), axis=1) > 0
        outputs = tf.where(has_begun[..., None], outputs, tf.zeros((), outputs.dtype))
    return outputs, tuple(tf.cast(state, x.dtype) for state in states)


def _projected(x, kernel, bias):
    """`x @ kernel + bias` as one product of matrices, whose gradient is one too; a batch of products is not."""
    sizes = [tf.shape(x)[axis] if size is None else size for axis, size in enumerate(x.shape)]
    product = tf.matmul(tf.reshape(x, (sizes[0] * sizes[1], sizes[2])), kernel)
    if bias is not None:
        product = tf.cast(float32(product) + float32(bias), x.dtype)
    return tf.reshape(product, (sizes[0], sizes[1], product.shape[-1]))


def _by_step(x):
    """A TensorArray of `x[:, step]`, whose gradient, unlike that of slices, costs one step's work a step."""
    array = tf.TensorArray(x.dtype, x.shape[1], element_shape=(x.shape[0], x.shape[2]))
    return array.unstack(tf.transpose(x, (1, 0, 2)))
