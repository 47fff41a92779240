"""Runs of unifit that tests start in this process or in workers (worker.py): each returns named arrays, nothing else.

`devices` is the number of devices to train on; every other argument is plain JSON.
"""

import numpy as np

import unifit as uf


def _data(rows=37, features=5, outputs=3, seed=7):
    r = np.random.default_rng(seed)
    x = r.normal(size=(rows, features)).astype("float32")
    y = r.normal(size=(rows, outputs)).astype("float32")
    return x, y, r.uniform(0.2, 2.0, rows).astype("float32")


def _optimizer(name, rate=1e-2):
    return {
        "sgd": lambda: uf.optimizers.SGD(rate),
        "momentum": lambda: uf.optimizers.SGD(rate, momentum=0.9, nesterov=True),
        "adamw": lambda: uf.optimizers.AdamW(rate, weight_decay=0.1),
        "adam": lambda: uf.optimizers.Adam(rate),
        "rmsprop": lambda: uf.optimizers.RMSprop(rate),
        "adagrad": lambda: uf.optimizers.Adagrad(rate),
        "lion": lambda: uf.optimizers.Lion(rate),
    }[name]()


def _outcome(model, history=None):
    arrays = {f"weight {path}": value for path, value in model.weights_by_path().items()}
    if history is not None:
        arrays |= {f"history {key}": np.array(values) for key, values in history.history.items()}
    return arrays


def law_network(devices, accumulation, optimizer, clip_norm=None, epochs=2, weighted=True):
    """Dense(tanh, L2) - BatchNormalization - Dense on ragged, shuffled, weighted rows: reference.py does it by hand."""
    x, y, weight = _data()
    model = uf.Sequential(
        [
            uf.layers.Dense(16, "tanh", kernel_regularizer=uf.regularizers.L2(0.05)),
            uf.layers.BatchNormalization(),
            uf.layers.Dense(3),
        ]
    )
    model.build((None, 5))
    start = {f"start {path}": value for path, value in model.weights_by_path().items()}
    model.compile(_optimizer(optimizer), "mse", gradient_accumulation_steps=accumulation, clip_norm=clip_norm)
    history = model.fit(
        x, y, batch_size=8, epochs=epochs, verbose=0, sample_weight=weight if weighted else None,
        distribution=uf.DataParallel(devices=devices),
    )  # fmt: skip
    return start | _outcome(model, history)


def class_weights(devices):
    """Cross-entropy with class weights and metrics on ragged rows."""
    x, _, weight = _data()
    y = np.random.default_rng(1).integers(0, 3, 37)
    model = uf.Sequential([uf.layers.Dense(8, "relu"), uf.layers.Dense(3)])
    model.compile(
        _optimizer("sgd", 0.1), uf.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"], weighted_metrics=["accuracy"],
    )  # fmt: skip
    history = model.fit(
        x, y, batch_size=10, epochs=3, verbose=0, class_weight={0: 1.0, 1: 3.0, 2: 0.25}, sample_weight=weight,
        validation_data=(x[:7], y[:7]), distribution=uf.DataParallel(devices=devices),
    )  # fmt: skip
    return _outcome(model, history) | {
        "evaluate": model.evaluate(x, y, verbose=0),
        "predict": model.predict(x, verbose=0),
    }


def token_masks(devices, accumulation=2):
    """Masked positions from Embedding(mask_zero), and ignored labels: windows and devices with very unequal counts."""
    r = np.random.default_rng(3)
    tokens = r.integers(1, 11, (23, 6)).astype("int32")
    lengths = r.integers(1, 7, 23)
    tokens[np.arange(6) >= lengths[:, None]] = 0
    labels = np.where(r.random((23, 6)) < 0.3, -1, np.roll(tokens, -1, 1))
    model = uf.Sequential([uf.layers.Embedding(11, 8, mask_zero=True), uf.layers.Dense(8, "tanh"), uf.layers.Dense(11)])
    model.compile(
        _optimizer("adamw"), uf.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1),
        metrics=["accuracy"], gradient_accumulation_steps=accumulation,
    )  # fmt: skip
    history = model.fit(
        tokens, labels, batch_size=4, epochs=2, verbose=0, distribution=uf.DataParallel(devices=devices)
    )
    return _outcome(model, history)


class TwoHeads(uf.Model):
    """Two outputs whose losses have different numbers of valid elements."""

    def __init__(self):
        super().__init__()
        self.trunk = uf.layers.Dense(8, "tanh")
        self.head = uf.layers.Dense(3)
        self.score = uf.layers.Dense(1)

    def call(self, x):
        h = self.trunk(x)
        return {"head": self.head(h), "score": self.score(h)}


def two_losses(devices, accumulation=2):
    """Dict losses with different counts: the divisors must be known before the first backward."""
    x, y, _ = _data()
    label = np.random.default_rng(4).integers(0, 3, 37)
    label[::4] = -1
    model = TwoHeads()
    model.compile(
        _optimizer("sgd", 0.1),
        {"head": uf.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1), "score": "mse"},
        loss_weights={"head": 0.7, "score": 0.3},
        gradient_accumulation_steps=accumulation,
    )
    history = model.fit(
        x,
        {"head": label, "score": y[:, :1]},
        batch_size=6,
        epochs=2,
        verbose=0,
        distribution=uf.DataParallel(devices=devices),
    )
    return _outcome(model, history)


def convolution(devices):
    """Conv2D - BatchNormalization - pooling on ragged batches, with clipping."""
    r = np.random.default_rng(5)
    x, y = r.normal(size=(21, 8, 8, 1)).astype("float32"), r.integers(0, 4, 21)
    model = uf.Sequential(
        [
            uf.layers.Conv2D(4, 3, padding="same", use_bias=False),
            uf.layers.BatchNormalization(),
            uf.layers.Activation("relu"),
            uf.layers.MaxPooling2D(),
            uf.layers.Flatten(),
            uf.layers.Dense(4),
        ]
    )
    model.compile(_optimizer("sgd", 0.05), uf.losses.SparseCategoricalCrossentropy(from_logits=True), clip_norm=0.5)
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0, distribution=uf.DataParallel(devices=devices))
    return _outcome(model, history)


def recurrent(devices):
    """Embedding(mask_zero) - Bidirectional LSTM - GRU on padded sequences with holes, and a ragged end of 23 rows."""
    r = np.random.default_rng(6)
    tokens = r.integers(1, 9, (23, 7)) * (r.random((23, 7)) < 0.8)
    tokens[np.arange(7) >= r.integers(0, 8, 23)[:, None]] = 0
    model = uf.Sequential(
        [
            uf.layers.Embedding(9, 5, mask_zero=True),
            uf.layers.Bidirectional(uf.layers.LSTM(4, return_sequences=True)),
            uf.layers.GRU(6),
            uf.layers.Dense(2),
        ]
    )
    model.build(uf.Input((7,), dtype="int32"))
    start = {f"start {path}": value for path, value in model.weights_by_path().items()}
    model.compile(_optimizer("sgd", 0.1), "mse")
    y = r.normal(size=(23, 2)).astype("float32")
    history = model.fit(
        tokens.astype("int32"), y, batch_size=8, epochs=2, verbose=0, distribution=uf.DataParallel(devices=devices)
    )
    predicted = model.predict(tokens.astype("int32"), batch_size=8, verbose=0)
    return start | _outcome(model, history) | {"predict": predicted}


class Recorder(uf.Layer):
    """Adds up the valid rows' ids of every pass of this device in a buffer: which rows did the devices see?"""

    def build(self, input_shape):
        self.seen = self.add_weight((64,), "zeros", trainable=False)

    def call(self, x, training):
        ambient = uf.context()
        if training:
            ids = uf.ops.cast(x[:, 0], "int32")
            rows = uf.ops.cast(uf.ops.one_hot(ids, 64), "float32")
            if ambient.valid is not None:
                rows = uf.ops.where(uf.ops.expand_dims(ambient.valid, -1), rows, 0.0)
            self.seen = self.seen + ambient.sum_over_devices(uf.ops.sum(rows, axis=0))
        return x


def rows_seen(devices, epochs=1):
    """Every row id exactly once an epoch, over all devices."""
    ids = np.arange(37, dtype="float32")[:, None]
    model = uf.Sequential([Recorder(), uf.layers.Dense(1)])
    model.compile(_optimizer("sgd", 0.0), "mse")
    model.fit(ids, ids, batch_size=8, epochs=epochs, verbose=0, distribution=uf.DataParallel(devices=devices))
    return {"seen": model.weights_by_path()["0.seen"]}


def digits_curve(devices, steps=50):
    """The losses of the first updates of examples/digits.py: shuffled, no dropout, float32."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = (x.reshape(-1, 8, 8, 1) / 16.0).astype("float32")
    model = uf.Sequential(
        [
            uf.layers.Conv2D(32, 3, padding="same", use_bias=False),
            uf.layers.BatchNormalization(momentum=0.9),
            uf.layers.Activation("silu"),
            uf.layers.AveragePooling2D(),
            uf.layers.Conv2D(64, 3, padding="same", activation="silu"),
            uf.layers.Flatten(),
            uf.layers.Dense(10),
        ]
    )
    model.build((None, 8, 8, 1))
    start = {f"start {path}": value for path, value in model.weights_by_path().items()}
    schedule = uf.schedules.CosineDecay(3e-3, 276, warmup_steps=27)
    model.compile(
        uf.optimizers.AdamW(schedule, weight_decay=0.01), uf.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    # One step an "epoch": steps_per_epoch goes on through the shuffled data, so each history entry is an update's loss.
    history = model.fit(
        x[:1440], y[:1440], batch_size=64, epochs=steps, steps_per_epoch=1, verbose=0,
        distribution=uf.DataParallel(devices=devices),
    )  # fmt: skip
    return start | {"losses": np.array(history.history["loss"])}


class Vector(uf.Layer):
    """y = t * w with w = [0, 0]."""

    def build(self, input_shape):
        self.w = self.add_weight((2,), "zeros")

    def call(self, t):
        return t * self.w


def clip_over_devices(devices):
    """S-GA-04 with the two micro-batches on two devices."""
    x = np.array([[2, 0], [0, 2]], np.float32)
    model = uf.Sequential([Vector()])
    model.compile(uf.optimizers.SGD(1.0), lambda y, p: uf.ops.sum(p, axis=-1), clip_norm=1.0)
    history = model.fit(x, x, batch_size=2, shuffle=False, verbose=0, distribution=uf.DataParallel(devices=devices))
    return {"w": model.get_weights()[0], "grad_norm": history.history["grad_norm"][0]}


def clip_by_global_norm(devices):
    """S-DI-07: one row a device, with gradients [6, 0] and [0, 8]."""
    x = np.array([[6, 0], [0, 8]], np.float32)
    model = uf.Sequential([Vector()])
    model.compile(uf.optimizers.SGD(1.0), lambda y, p: uf.ops.sum(p, axis=-1), clip_norm=1.0)
    history = model.fit(x, x, batch_size=2, shuffle=False, verbose=0, distribution=uf.DataParallel(devices=devices))
    return {"w": model.get_weights()[0], "grad_norm": history.history["grad_norm"][0]}


def jax_collectives(devices, accumulation, normalised=False):
    """Collectives in the compiled training program of the jax engine: inside loop bodies, and outside."""
    import re

    x, y, _ = _data(rows=16)
    layers = [uf.layers.Dense(8, "tanh"), uf.layers.Dense(3)]
    if normalised:
        layers.insert(1, uf.layers.BatchNormalization())
    model = uf.Sequential(layers)
    model.compile(_optimizer("adamw"), "mse", gradient_accumulation_steps=accumulation)
    lowered = []

    class Catch(uf.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            engine = self.model.trainer.engine
            if not lowered:
                compiled = engine._train

                def watched(*arguments):
                    lowered.append(compiled.lower(*arguments).compile().as_text())
                    return compiled(*arguments)

                engine._train = watched

    model.fit(x, y, batch_size=4, verbose=0, callbacks=[Catch()], distribution=uf.DataParallel(devices=devices))
    bodies = set(re.findall(r"body=%?([\w.\-]+)", lowered[0]))
    counts, computation = {"in_loops": 0, "outside": 0}, ""
    for line in lowered[0].splitlines():
        header = re.match(r"(?:ENTRY )?%?([\w.\-]+) .*\{$", line)
        if header:
            computation = header.group(1)
        if re.search(r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(", line):
            counts["in_loops" if computation in bodies else "outside"] += 1
    return counts


# Cases S-DI: see tests/cases/test_s_di.py for the numbers.


def _prediction(y_true, y_pred):
    return y_pred


class CountRows(uf.metrics.Metric):
    """How many rows were scored."""

    def sums(self, y_true, y_pred, weight):
        ones = uf.ops.ones_like(y_pred[:, 0]) if weight is None else weight
        return {"rows": uf.ops.sum(ones)}

    def compute(self, sums):
        return float(sums["rows"])


def five_losses(devices, batch_size):
    """S-DI-02: rows whose losses are 1, 2, 3, 4, 10."""
    x = np.array([[1], [2], [3], [4], [10]], np.float32)
    model = uf.Sequential([uf.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.compile("sgd", _prediction, metrics=[CountRows(name="rows")])
    distribution = uf.DataParallel(devices=devices)
    scores = model.evaluate(x, x, batch_size=batch_size, verbose=0, return_dict=True, distribution=distribution)
    return scores | {"predicted": model.predict(x, batch_size=batch_size, verbose=0, distribution=distribution)}


class Order(uf.Layer):
    """Keeps the ids of the rows of every training pass, over all devices, in a buffer: step by step."""

    def build(self, input_shape):
        self.ids = self.add_weight((3, 8), "zeros", trainable=False)
        self.step = self.add_weight((), "zeros", trainable=False)

    def call(self, x, training):
        if training:
            ambient = uf.context()
            # Each id marks the step that saw it; steps count from 1 so that 0 means never.
            seen = uf.ops.sum(uf.ops.one_hot(uf.ops.cast(x[:, 0], "int32"), 8), axis=0)
            self.step = self.step + 1.0
            epoch = uf.ops.floor((self.step - 1.0) / 4.0)
            row = uf.ops.cast(uf.ops.equal(uf.ops.arange(3), uf.ops.cast(epoch, "int32")), "float32")
            marks = ambient.sum_over_devices(seen) * self.step
            self.ids = self.ids + uf.ops.expand_dims(row, 1) * uf.ops.expand_dims(marks, 0)
        return x


def shuffled_ids(devices, seed):
    """S-DI-03: for each of three epochs, the ids in the order of the steps that saw them (two a step)."""
    uf.set_seed(seed)
    x = np.arange(8, dtype="float32")[:, None]
    model = uf.Sequential([Order(), uf.layers.Dense(1)])
    model.compile(_optimizer("sgd", 0.0), "mse")
    model.fit(x, x, batch_size=2, epochs=3, verbose=0, distribution=uf.DataParallel(devices=devices))
    steps = model.weights_by_path()["0.ids"]
    assert ((steps > 0).all(axis=1)).all() and all(
        np.unique(row, return_counts=True)[1].tolist() == [2] * 4 for row in steps
    )
    return {"ids": np.argsort(steps, axis=1, kind="stable")}


def two_level_batch_norm(devices, path):
    """S-DI-05: device 0 sees zeros, device 1 fours; the moving statistics are those of the last batch."""
    x = np.array([[0.0]] * 4 + [[4.0]] * 4, np.float32)
    model = uf.Sequential([uf.layers.BatchNormalization(momentum=0.0)])
    model.compile(_optimizer("sgd", 0.0), "mse")
    model.fit(x, x, batch_size=8, shuffle=False, verbose=0, distribution=uf.DataParallel(devices=devices))
    weights = model.weights_by_path()
    loss = model.evaluate(x, x, verbose=0)
    model.save(path)
    return {"mean": weights["0.moving_mean"][0], "variance": weights["0.moving_variance"][0], "loss": loss}


def reloaded_loss(devices, path):
    """S-DI-05: the saved model's loss, in one process."""
    x = np.array([[0.0]] * 4 + [[4.0]] * 4, np.float32)
    return {"loss": uf.load_model(path).evaluate(x, x, verbose=0)}


def mean_squared_step(devices):
    """S-DI-08: prediction w * 1, label 2, w = 0."""
    x, y = np.ones((4, 1), np.float32), np.full((4, 1), 2.0, np.float32)
    model = uf.Sequential([uf.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(_optimizer("sgd", 0.1), "mse")
    history = model.fit(x, y, batch_size=4, verbose=0, distribution=uf.DataParallel(devices=devices))
    return {"loss": history.history["loss"][0], "w": model.get_weights()[0][0, 0]}


class Branches(uf.Model):
    """Three scalar weights: one used, one never, one frozen."""

    def __init__(self):
        super().__init__()
        zeros = {"use_bias": False, "kernel_initializer": "zeros"}
        self.a, self.b = uf.layers.Dense(1, **zeros), uf.layers.Dense(1, **zeros)
        self.frozen = uf.layers.Dense(1, **zeros)
        self.frozen.trainable = False

    def call(self, x, training):
        if uf.context().abstract:
            self.b(x)  # built, and then not used on any step
        return self.a(x) + self.frozen(x)


def unused_branch(devices):
    """S-DI-10 (a), and a frozen layer."""
    x = np.ones((4, 1), np.float32)
    model = Branches()
    model.compile(_optimizer("sgd", 1.0), _prediction)
    model.fit(x, x, batch_size=4, verbose=0, distribution=uf.DataParallel(devices=devices))
    weights = model.weights_by_path()
    return {name: weights[f"{name}.kernel"][0, 0] for name in ("a", "b", "frozen")}


class KeepDropped(uf.Layer):
    """Writes what each device's dropout let through into its own row of a buffer."""

    def __init__(self):
        super().__init__()
        self.dropout = uf.layers.Dropout(0.5)

    def build(self, input_shape):
        self.kept = self.add_weight((2, 64), "zeros", trainable=False)

    def call(self, x, training):
        y = self.dropout(x[:, 1:])
        if training:
            # A row's first feature is its number, and each of the two devices has one row.
            rows = uf.ops.one_hot(uf.ops.cast(x[:, 0], "int32"), 2)
            own = uf.ops.matmul(uf.ops.transpose(rows), uf.ops.cast(y > 0, "float32"))
            self.kept = uf.context().sum_over_devices(own)
        return y


def dropout_masks(devices):
    """S-DI-06: the dropout mask over 64 units of each of two devices at the first step."""
    x = np.ones((2, 65), np.float32)
    x[:, 0] = [0, 1]
    model = uf.Sequential([KeepDropped(), uf.layers.Dense(1)])
    model.compile(_optimizer("sgd", 0.0), "mse")
    model.fit(x, x[:, :1], batch_size=2, shuffle=False, verbose=0, distribution=uf.DataParallel(devices=devices))
    return {"kept": model.weights_by_path()["0.kept"]}


def drawn_run(
    devices, on, rows, batch_size, accumulation, microbatch_size, weights, reduction, ignored, masking, optimizer,
    clip_norm, seed,
):  # fmt: skip
    """A run of the property test, on `on` of the devices: token labels, some ignored, some masked, some weighted."""
    length, classes = 3, 4
    r = np.random.default_rng(seed)
    tokens = r.integers(0 if masking else 1, 6, (rows, length)).astype("int32")
    labels = r.integers(-1 if ignored else 0, classes, (rows, length)).astype("int32")
    weight = {
        "none": None,
        "rows": r.uniform(0.1, 2.0, rows).astype("float32"),
        "tokens": r.uniform(0.1, 2.0, (rows, length)).astype("float32"),
        "mask of rows": r.random(rows) < 0.7,
        "mask of tokens": r.random((rows, length)) < 0.7,
    }[weights]
    uf.set_seed(1)
    model = uf.Sequential(
        [uf.layers.Embedding(6, 5, mask_zero=masking), uf.layers.Dense(5, "tanh"), uf.layers.Dense(classes)]
    )
    loss = uf.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=-1 if ignored else None, reduction=reduction
    )
    # A large epsilon: else an entry whose gradient nearly cancels moves by lr times the rounding of its sign.
    rules = {"momentum": _optimizer("momentum"), "adamw": uf.optimizers.AdamW(1e-2, weight_decay=0.1, epsilon=0.1)}
    model.compile(
        rules[optimizer], loss, gradient_accumulation_steps=accumulation, microbatch_size=microbatch_size,
        clip_norm=clip_norm,
    )  # fmt: skip
    history = model.fit(
        tokens, labels, sample_weight=weight, batch_size=batch_size, epochs=2, verbose=0,
        distribution=uf.DataParallel(devices=on),
    )  # fmt: skip
    return _outcome(model) | {
        "loss": history.history["loss"], "updates": model.trainer.engine.iterations(),
    }  # fmt: skip


def overflow_on_the_last_device(devices):
    """Two finite updates, then one whose last row, which is the last device's, overflows in float16."""
    r = np.random.default_rng(0)
    x = r.normal(size=(8, 3)).astype("float32")
    model = uf.Sequential([uf.layers.Dense(4), uf.layers.BatchNormalization(), uf.layers.Dense(1)])
    model.compile(
        _optimizer("adamw"), lambda y, p: p * y, precision="mixed_float16", gradient_accumulation_steps=2,
        clip_norm=1.0, ema=uf.EMA(0.9),
    )  # fmt: skip
    y = np.ones((8, 1), np.float32)
    options = {"batch_size": 4, "shuffle": False, "verbose": 0, "distribution": uf.DataParallel(devices=devices)}

    def state():
        slots = {f"slot {name}": value for name, value in model.trainer.slots().items()}
        return {name: value for name, value in slots.items() if "loss_scale" not in name} | _outcome(model)

    model.fit(x, y, epochs=2, **options)
    before, scale = state(), model.trainer.engine.scaling().scale
    y[3] = 1e6  # the last row of the first micro-batch
    model.fit(x, y, **options)
    after = model.trainer.engine.scaling()
    return (
        {f"before {name}": value for name, value in before.items()}
        | {f"after {name}": value for name, value in state().items()}
        | {"scale before": scale, "scale": after.scale, "skipped": after.skipped}
    )


def scaled_updates(devices, rows, scale, rate=1.0, ramp=False, clip_norm=None, factor=1.0, growth_interval=2000):
    """Cases S-MP: updates of Vector in float16 whose gradient is a row times `factor`, the same on each device."""
    x = np.repeat(np.array(rows, np.float32), devices, axis=0)
    model = uf.Sequential([Vector()])
    rate = uf.schedules.PiecewiseConstantDecay([0], [0.1, 0.2]) if ramp else rate
    model.compile(
        uf.optimizers.SGD(rate), lambda y, p: uf.ops.sum(p, axis=-1) * factor, clip_norm=clip_norm, ema=uf.EMA(0.5),
        precision=uf.Precision("float16", loss_scale=uf.LossScale(scale, growth_interval=growth_interval)),
    )  # fmt: skip
    history = model.fit(
        x, x, batch_size=devices, shuffle=False, verbose=0, distribution=uf.DataParallel(devices=devices)
    )
    slots = model.trainer.slots()
    return {
        "w": model.get_weights()[0],
        "iterations": slots["iterations"],
        "averages": slots["ema.updates"],
        "grad_norm": history.history.get("grad_norm", [0.0])[0],
        **{name: slots[f"loss_scale.{name}"] for name in ("scale", "good", "skipped")},
    }
