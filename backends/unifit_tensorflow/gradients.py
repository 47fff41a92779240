"""What happens to gradients between the tape and the optimizer: made dense and float32, summed up, clipped."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from unifit.contract.values import Plan


def accumulator(shape: Any) -> tf.Variable:
    """A float32 variable with a value of its own on each device."""
    return tf.Variable(
        tf.zeros(shape, tf.float32),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )


def dense(gradient: Any, shape: Any) -> Any:
    """The gradient as a float32 tensor: zeros where there is none, rows summed where an embedding gave them."""
    if gradient is None:
        return tf.zeros(shape, tf.float32)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.math.unsorted_segment_sum(tf.cast(gradient.values, tf.float32), gradient.indices, shape[0])
    return tf.cast(gradient, tf.float32)


def clip(gradients: list[Any], factor: Any, plan: Plan) -> tuple[list[Any], Any]:
    """Gradients times `factor`, clipped by global norm, each by its own norm (both by min(1, c / norm)), or by value.

    Returns the norm before clipping too, 0 when it is not needed.
    """
    norm = tf.zeros(())
    if plan.clip_norm is not None:
        norm = tf.sqrt(2.0 * sum((tf.nn.l2_loss(g) for g in gradients), tf.zeros(()))) * factor
        factor = factor * tf.minimum(1.0, plan.clip_norm / norm)
    if plan.clip_parameter_norm is not None:
        return [
            g * (factor * tf.minimum(1.0, plan.clip_parameter_norm / (length(g) * factor))) for g in gradients
        ], norm
    gradients = [g * factor for g in gradients]
    if plan.clip_value is not None:
        gradients = [tf.clip_by_value(g, -plan.clip_value, plan.clip_value) for g in gradients]
    return gradients, norm


def length(gradient: Any) -> Any:
    """The Euclidean norm."""
    return tf.sqrt(2.0 * tf.nn.l2_loss(gradient))


def finite(gradients: list[Any]) -> Any:
    """For each gradient, whether all of its elements are finite: bool vector. No sum, which could overflow."""
    return tf.stack([tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients])
