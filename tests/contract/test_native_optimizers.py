"""Optimizers of the framework's own: the same weights as the framework's own loop gives, and skips that hold."""

import numpy as np
import pytest

import unifit as uf
from unifit.backend import backend
from unifit.errors import ArgumentError, UnsupportedError

RATE = 0.05


def native():
    if backend.name == "jax":
        import optax

        return optax.sgd(RATE, momentum=0.9)
    import torch

    return lambda params: torch.optim.SGD(params, lr=RATE, momentum=0.9)


def trained(optimizer, **options):
    r = np.random.default_rng(0)
    model = uf.Sequential([uf.layers.Dense(3)])
    model.compile(optimizer, "mse", **options)
    model.fit(r.normal(size=(20, 4)), r.normal(size=(20, 3)), batch_size=4, epochs=2, verbose=0)
    return model


@pytest.mark.backends("jax", "torch")
@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.1, "gradient_accumulation_steps": 2}])
def test_native_optimizer_equals_the_rule_of_its_name(options):
    got = trained(native(), **options).weights_by_path()
    want = trained(uf.optimizers.SGD(RATE, momentum=0.9), **options).weights_by_path()
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-6)


@pytest.mark.backends("jax", "torch")
def test_native_optimizer_is_not_called_for_a_window_without_targets():
    model = trained(native())
    before = model.weights_by_path()
    x = np.ones((4, 4), np.float32)
    with pytest.warns(UserWarning, match="no valid target"):
        model.fit(x, x[:, :3], sample_weight=np.zeros(4, np.bool_), verbose=0)
    for name, value in model.weights_by_path().items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.backends("jax", "torch")
def test_rate_of_native_optimizer_cannot_be_set():
    with pytest.raises(ArgumentError, match="own learning rate"):
        trained(native()).optimizer.learning_rate = 0.1


def test_what_is_no_native_optimizer_is_refused_before_training():
    with pytest.raises(UnsupportedError, match="optimizer"):
        trained(lambda params: None)


class CutShort(uf.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise InterruptedError


@pytest.mark.backends("jax", "torch")
def test_native_optimizer_goes_on_from_a_checkpoint_to_the_last_bit(tmp_path):
    r = np.random.default_rng(0)
    x, y = r.normal(size=(20, 4)), r.normal(size=(20, 3))

    def run(**options):
        model = uf.Sequential([uf.Input((4,)), uf.layers.Dense(3)])
        model.compile(native(), "mse")
        model.fit(x, y, batch_size=4, epochs=4, verbose=0, **options)
        return model.get_weights()

    with pytest.raises(InterruptedError):
        run(checkpoint_dir=tmp_path, callbacks=CutShort())
    for got, want in zip(run(checkpoint_dir=tmp_path), run(), strict=True):
        np.testing.assert_array_equal(got, want)
