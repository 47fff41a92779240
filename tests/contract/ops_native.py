"""What the tests need of the framework itself: compiling a function, and differentiating it."""

import numpy as np

from unifit import ops
from unifit.backend import backend

# The programs run once: compiling them fast matters, running them fast does not.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def compiled(function):
    """`function` of arrays, compiled by the framework (on torch, as it is)."""
    if backend.name == "jax":
        import jax

        return jax.jit(function, compiler_options=QUICK)
    if backend.name == "tensorflow":
        import tensorflow as tf

        return tf.function(function)
    return function


def gradients(function, *arrays):
    """Gradients of a scalar function at NumPy arrays, as NumPy arrays."""
    tensors = [ops.convert_to_tensor(x) for x in arrays]
    if backend.name == "jax":
        import jax

        gradient = jax.grad(function, argnums=tuple(range(len(tensors))))
        found = jax.jit(gradient, compiler_options=QUICK)(*tensors)
    elif backend.name == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(tensors)
            y = function(*tensors)
        found = map(tf.convert_to_tensor, tape.gradient(y, tensors))  # gathers give sparse ones
    else:
        import torch

        for tensor in tensors:
            tensor.requires_grad_()
        found = torch.autograd.grad(function(*tensors), tensors)
    return [np.asarray(ops.convert_to_numpy(x)) for x in found]
