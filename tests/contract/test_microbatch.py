"""microbatch_size: memory changes, numbers do not; "auto" finds what fits by trial, and leaves no trace of it."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import unifit as uf
from tolerance import assert_same_weights
from unifit.backend import backend
from unifit.errors import ArgumentError, OutOfMemoryError

RATE = 1e-2
TIME_LIMIT_S = 100


def data(rows=37):
    r = np.random.default_rng(0)
    return r.normal(size=(rows, 5)).astype("float32"), r.normal(size=(rows, 2)).astype("float32")


def trained(layers, **options):
    x, y = data()
    model = uf.Sequential(layers)
    model.compile(uf.optimizers.AdamW(RATE), "mse", **options)
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0)
    return model, history


def plain_layers():
    return [uf.layers.Dense(6, "tanh"), uf.layers.Dense(2)]


def out_of_memory():
    """The framework's own error."""
    if backend.name == "torch":
        import torch

        return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if backend.name == "jax":
        import jax

        return jax.errors.JaxRuntimeError(
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2147483648 bytes."
        )
    import tensorflow as tf

    return tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[65536,65536]")


class Hungry(uf.Layer):
    """Runs out of memory where a pass has more rows than `limit`, and counts its training passes in a buffer."""

    def __init__(self, limit):
        super().__init__()
        self.limit = limit

    def build(self, input_shape):
        self.passes = self.add_weight((), "zeros", trainable=False)

    def call(self, x, training):
        if training and not uf.context().abstract:
            if x.shape[0] > self.limit:
                raise out_of_memory()
            self.passes = self.passes + 1.0
        return x


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("size", [1, 3, 5, 8, 100])
def test_microbatches_do_not_change_the_numbers(size, accumulation):
    whole, _ = trained(plain_layers(), gradient_accumulation_steps=accumulation)
    cut, _ = trained(plain_layers(), gradient_accumulation_steps=accumulation, microbatch_size=size)
    steps = 2 * -(-5 // accumulation)
    assert cut.trainer.engine.iterations() == steps
    assert_same_weights(cut.weights_by_path(), whole.weights_by_path(), rate_sum=RATE * steps)


@pytest.mark.parametrize(("limit", "expected"), [(8, 8), (7, 4), (4, 4), (3, 2), (1, 1)])
def test_auto_takes_the_most_rows_that_fit(limit, expected):
    whole, _ = trained(plain_layers())
    model, _ = trained([Hungry(limit), *plain_layers()], microbatch_size="auto")
    assert model.trainer.pieces == -(-8 // expected)
    weights = model.weights_by_path()
    # Five batches an epoch, the last of five rows, in pieces: no pass of a trial counts.
    assert weights.pop("0.passes") == 2 * (4 * -(-8 // expected) + -(-5 // expected))
    moved = {f"{int(path[0]) - 1}{path[1:]}": value for path, value in weights.items()}
    start = whole.weights_by_path()
    assert moved.keys() == start.keys()


def test_auto_is_said_once_and_kept_for_the_next_fit(capfd):
    x, y = data()
    model = uf.Sequential([Hungry(3), *plain_layers()])
    model.compile("adam", "mse", microbatch_size="auto")
    for _ in range(2):
        model.fit(x, y, batch_size=8, verbose=2)
    said = [line for line in capfd.readouterr().err.splitlines() if "microbatch_size" in line]
    assert len(said) == 1 and "microbatch_size=2" in said[0] and "4 micro-batch" in said[0]


def test_auto_is_saved_with_the_model_and_not_tried_again(tmp_path, monkeypatch):
    x, y = data(8)
    model = uf.Sequential([uf.layers.Dense(2)])
    model.compile("adam", "mse", microbatch_size="auto")
    model.chosen_microbatch_sizes[8, 1] = 3  # as a trial would have found on a smaller device
    model.fit(x, y, batch_size=8, verbose=0)
    assert model.trainer.pieces == 3
    model.save(tmp_path / "model.unifit")
    again = uf.load_model(tmp_path / "model.unifit")
    monkeypatch.setattr(backend.engine.Engine, "probe", None)
    again.fit(x, y, batch_size=8, verbose=0)
    assert again.trainer.pieces == 3


def test_auto_that_fits_nothing_is_an_error():
    with pytest.raises(OutOfMemoryError, match="not even one row"):
        trained([Hungry(0), *plain_layers()], microbatch_size="auto")


@pytest.mark.parametrize(("size", "smaller"), [(None, 4), (6, 3), (3, 2)])
def test_running_out_of_memory_names_the_next_smaller_size(size, smaller):
    with pytest.raises(OutOfMemoryError, match=f"microbatch_size={smaller}"):
        trained([Hungry(1), *plain_layers()], microbatch_size=size)


def test_running_out_of_memory_in_train_on_batch_is_named_too():
    x, y = data(8)
    model = uf.Sequential([Hungry(1), *plain_layers()])
    model.compile("adam", "mse")
    with pytest.raises(OutOfMemoryError, match="microbatch_size=4"):
        model.train_on_batch(x, y)


@pytest.mark.parametrize("size", [0, -1, 2.5, True, "all"])
def test_size_that_is_none_is_refused(size):
    with pytest.raises(ArgumentError, match="microbatch_size"):
        uf.Sequential([uf.layers.Dense(1)]).compile("sgd", "mse", microbatch_size=size)


def test_auto_in_memory_that_is_really_short(tmp_path):
    """Under a limit of the process' address space, a model whose scores take 32 MB a row trains 64 rows a batch."""
    script = tmp_path / "short.py"
    script.write_text(
        textwrap.dedent(
            """
            import resource
            import numpy as np
            import unifit as uf

            class Scores(uf.Layer):
                def call(self, x):  # (rows, length) -> a softmax over (rows, length, length), as attention makes it
                    a = uf.ops.expand_dims(x, -1)
                    weights = uf.ops.softmax(uf.ops.matmul(a, uf.ops.transpose(a, (0, 2, 1))), axis=-1)
                    return uf.ops.squeeze(uf.ops.matmul(weights, a), -1)

            def model(size):
                made = uf.Sequential([uf.layers.Dense(LENGTH), Scores(), uf.layers.Dense(1)])
                made.compile("adam", "mse", microbatch_size=size)
                return made

            LENGTH = 2896
            x = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
            model(2).fit(x[:2], x[:2, :1], verbose=0)  # what the framework takes for itself
            used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize"))
            limit = used * 1024 + 1200 * 2**20
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            tight = model("auto")
            tight.fit(x, x[:, :1], batch_size=64, verbose=2)
            print("pieces", tight.trainer.pieces)
            """
        )
    )
    environment = os.environ | {"MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script], env=environment, capture_output=True, text=True, timeout=TIME_LIMIT_S
    )
    assert done.returncode == 0, done.stderr[-3000:]
    pieces = int(done.stdout.split()[-1])
    assert 2 <= pieces <= 64, done.stderr[-2000:]
