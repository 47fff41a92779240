"""Runs in jobs of several processes, where processes differ; each returns named arrays (see scenarios.py)."""

import os

import numpy as np

import unifit as uf


def _linear(start="zeros"):
    return uf.layers.Dense(1, use_bias=False, kernel_initializer=start)


def _prediction(y_true, y_pred):
    return y_pred


def _weights(model):
    return {f"weight {path}": value for path, value in model.weights_by_path().items()}


def _raised(function):
    """What a call raised, in words, as an array."""
    try:
        function()
    except Exception as error:
        return {"kind": np.array(type(error).__name__), "text": np.array(str(error))}
    return {"kind": np.array("nothing"), "text": np.array("")}


def batches_of_unequal_number(devices, accumulation=1):
    """S-DI-01: process 0 has three batches of its own, process 1 two; the gradient is the batch's number."""
    count = 3 if uf.process_index() == 0 else 2

    def batches():
        for number in range(count):
            x = np.full((2, 1), number + 1.0, np.float32)
            yield x, x

    model = uf.Sequential([_linear()])
    model.compile(uf.optimizers.SGD(0.1), _prediction, gradient_accumulation_steps=accumulation)
    history = model.fit(uf.data.PerProcess(batches), epochs=2, verbose=0, distribution=uf.DataParallel(devices=devices))
    return _weights(model) | {"loss": history.history["loss"]}


def rows_of_each_process(devices):
    """Unequal numbers of rows in each process' batches: evaluation and prediction see every row once."""
    process = uf.process_index()
    own = [np.arange(1, 4), np.arange(4, 6)] if process == 0 else [np.arange(11, 12)]

    def batches():
        for ids in own:
            x = ids.astype("float32")[:, None]
            yield x, x

    model = uf.Sequential([_linear("ones")])
    model.compile("sgd", _prediction)
    distribution = uf.DataParallel(devices=devices)
    loss = model.evaluate(uf.data.PerProcess(batches), verbose=0, distribution=distribution)
    predicted = model.predict(uf.data.PerProcess(batches), verbose=0, distribution=distribution)
    return {"loss": loss, "predicted": predicted}


class Branching(uf.Model):
    """Two scalar weights; each row uses one of them, so that with one row a device each device uses its own."""

    def __init__(self):
        super().__init__()
        self.a, self.b = _linear(), _linear()

    def call(self, x):
        number, value = x[:, :1], x[:, 1:]
        if uf.backend.name == "torch" and not uf.context().abstract:  # the Python branch that torch users write
            return self.a(value) if float(number[0, 0]) == 0 else self.b(value)
        return uf.ops.where(number == 0, self.a(value), self.b(value))


def branches_by_device(devices):
    """S-DI-10 (b): device 0 uses only a (gradient 2), device 1 only b (gradient 4)."""
    x = np.array([[0, 2], [1, 4]], np.float32)
    model = Branching()
    model.compile(uf.optimizers.SGD(1.0), _prediction)
    model.fit(x, x[:, :1], batch_size=2, shuffle=False, verbose=0, distribution=uf.DataParallel(devices=devices))
    return _weights(model)


class Both(uf.Model):
    """The sum of two scalar weights."""

    def __init__(self):
        super().__init__()
        self.a, self.b = _linear(), _linear()

    def call(self, x):
        return self.a(x) + self.b(x)


class Freeze(uf.callbacks.Callback):
    """Sets b's `trainable` after given steps, and notes the weights after each."""

    def __init__(self, changes):
        super().__init__()
        self.changes = changes
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append([float(np.ravel(value)[0]) for _, value in sorted(self.model.weights_by_path().items())])
        if str(batch) in self.changes:
            self.model.b.trainable = self.changes[str(batch)]


def frozen_midway(devices, changes, momentum=0.0):
    """S-DI-10 (c): b is frozen, and unfrozen, by a callback in mid-run."""
    x = np.ones((12, 1), np.float32)
    model = Both()
    model.compile(uf.optimizers.SGD(1.0, momentum=momentum), _prediction)
    freeze = Freeze(changes)
    history = model.fit(
        x, x, batch_size=2, verbose=0, callbacks=[freeze], distribution=uf.DataParallel(devices=devices)
    )
    return {"seen": np.array(freeze.seen), "loss": history.history["loss"]}


class StopOn(uf.callbacks.Callback):
    """Stops training at a step, on one process only; counts the steps that this process made."""

    def __init__(self, process, step, at_epoch_end=False):
        super().__init__()
        self.process, self.step, self.at_epoch_end, self.steps = process, step, at_epoch_end, 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if not self.at_epoch_end and uf.process_index() == self.process and self.steps == self.step:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        if self.at_epoch_end and uf.process_index() == self.process:
            self.model.stop_training = True


def stopped_by_one(devices, process, at_epoch_end=False):
    """One process' callback wishes to stop."""
    x = np.random.default_rng(0).normal(size=(400, 3)).astype("float32")
    model = uf.Sequential([uf.layers.Dense(1)])
    model.compile("adam", "mse")
    stop = StopOn(process, 5, at_epoch_end)
    model.fit(
        x, x[:, :1], batch_size=4, epochs=3, verbose=0, callbacks=[stop], distribution=uf.DataParallel(devices=devices)
    )
    return _weights(model) | {"steps": stop.steps}


class Fails(uf.callbacks.Callback):
    """Raises in a hook on one process, as writing to a full disk does."""

    def __init__(self, hook, process):
        super().__init__()
        setattr(self, hook, self._fail)
        self.process = process

    def _fail(self, *arguments):
        if uf.process_index() == self.process:
            raise OSError("no space left on device")


def failing_callback(devices, hook, process):
    """A hook of one process raises; training goes on to be possible afterwards."""
    x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
    model = uf.Sequential([uf.layers.Dense(1)])
    model.compile("adam", "mse")
    options = {"batch_size": 4, "verbose": 0, "distribution": uf.DataParallel(devices=devices)}
    raised = _raised(
        lambda: model.fit(
            x, x[:, :1], epochs=2, validation_data=(x, x[:, :1]), callbacks=[Fails(hook, process)], **options
        )
    )
    model.fit(x, x[:, :1], **options)
    return raised | _weights(model)


def failing_save(devices, path):
    """The main process cannot write."""
    x = np.ones((8, 3), np.float32)
    model = uf.Sequential([uf.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x, x[:, :1], verbose=0, distribution=uf.DataParallel(devices=devices))
    missing = _raised(lambda: model.save(os.path.join(path, "missing", "model.unifit")))
    model.save(os.path.join(path, "model.unifit"))
    return missing


def different_start(devices):
    """A model that each process starts from random numbers of its own."""
    x = np.ones((8, 3), np.float32)
    model = uf.Sequential([uf.layers.Dense(2), uf.layers.Dense(1)])
    model.build((None, 3))
    own = np.random.default_rng(uf.process_index())
    model.set_weights([own.normal(size=value.shape).astype("float32") for value in model.get_weights()])
    model.compile("sgd", "mse")
    return _raised(lambda: model.fit(x, x[:, :1], verbose=0, distribution=uf.DataParallel(devices=devices)))


def different_data(devices, kind):
    """Data that each process drew for itself, or of different length, or of an order of its own."""
    process = uf.process_index()
    r = np.random.default_rng(process if kind == "rows" else 0)
    x = r.normal(size=(40 + (process if kind == "length" else 0), 3)).astype("float32")
    model = uf.Sequential([uf.layers.Dense(1)])
    model.compile("sgd", "mse")
    options = {"verbose": 0, "distribution": uf.DataParallel(devices=devices)}
    if kind == "stream":
        shift = float(process)
        return _raised(
            lambda: model.fit([(x[i : i + 8] + shift, x[i : i + 8, :1]) for i in range(0, 40, 8)], **options)
        )
    if kind == "unequal stream":
        stop = 40 if process == 0 else 24

        def batches():
            for i in range(0, stop, 8):
                yield x[i : i + 8], x[i : i + 8, :1]

        return _raised(lambda: model.fit(batches, **options))
    return _raised(lambda: model.fit(x, x[:, :1], **options))


def different_calls(devices):
    """Process 0 evaluates while process 1 predicts."""
    x = np.ones((8, 3), np.float32)
    model = uf.Sequential([uf.layers.Dense(1)])
    model.compile("sgd", "mse")
    options = {"verbose": 0, "distribution": uf.DataParallel(devices=devices)}
    if uf.process_index() == 0:
        return _raised(lambda: model.evaluate(x, x[:, :1], **options))
    return _raised(lambda: model.predict(x, **options))


def predicted_on_main(devices):
    """predict with main_process_only."""
    x = np.arange(10, dtype="float32")[:, None]
    model = uf.Sequential([_linear("ones")])
    predicted = model.predict(
        x, batch_size=4, verbose=0, main_process_only=True, distribution=uf.DataParallel(devices=devices)
    )
    return {"none": predicted is None, "rows": np.zeros(0) if predicted is None else predicted.ravel()}


class Augmented:
    """Rows by number, each with a random number of torch's global generator and its place in a batch of two."""

    def __len__(self):
        return 8

    def __getitem__(self, row):
        import torch

        return torch.cat([torch.randint(2**24, (1,)).float(), torch.tensor([float(row % 2)])]), torch.zeros(1)


class Watch(uf.Layer):
    """Keeps what the devices saw in each of four steps, by row, in a buffer."""

    def build(self, input_shape):
        self.seen = self.add_weight((4, 2), "zeros", trainable=False)
        self.step = self.add_weight((), "zeros", trainable=False)

    def call(self, x, training):
        if training:
            mine = uf.ops.cast(uf.ops.equal(uf.ops.arange(4), uf.ops.cast(self.step, "int32")), "float32")
            row = uf.ops.cast(uf.ops.equal(uf.ops.arange(2), 0), "float32")
            # Each device has one row of two; its place follows from the device's number, which `row` cannot know: add
            # up the first and the second device's through their ids in the second column.
            first = uf.ops.sum(uf.ops.where(x[:, 1:] == 0, x[:, :1], 0.0))
            second = uf.ops.sum(uf.ops.where(x[:, 1:] == 1, x[:, :1], 0.0))
            both = first * row + second * (1.0 - row)
            total = uf.context().sum_over_devices(both)
            self.seen = self.seen + uf.ops.expand_dims(mine, 1) * uf.ops.expand_dims(total, 0)
            self.step = self.step + 1.0
        return x


def worker_randomness(devices):
    """S-DI-06: what a torch data set drew for each row, with two loader workers in each of two processes.

    The workers are spawned: they import unifit anew, with the job's variables in their environment.
    """
    from torch.utils.data import DataLoader

    model = uf.Sequential([Watch(), uf.layers.Dense(1)])
    model.compile(uf.optimizers.SGD(0.0), "mse")
    loader = DataLoader(Augmented(), batch_size=2, num_workers=2, multiprocessing_context="spawn")
    model.fit(loader, verbose=0, distribution=uf.DataParallel(devices=devices))
    return {"seen": model.weights_by_path()["0.seen"]}


def scheduled_by_a_function(devices):
    """A learning rate that has no config: a lambda."""
    x = np.ones((4, 1), np.float32)
    model = uf.Sequential([_linear()])
    model.compile(uf.optimizers.SGD(lambda step: 0.1 * (step + 1)), _prediction)
    model.fit(x, x, batch_size=2, verbose=0, distribution=uf.DataParallel(devices=devices))
    return _weights(model)


def gradient_collectives(devices, accumulation):
    """How many all-reduces torch runs in training, by the profiler, over three updates."""
    import torch

    x = np.random.default_rng(0).normal(size=(2 * accumulation * 3, 5)).astype("float32")
    model = uf.Sequential([uf.layers.Dense(8, "tanh"), uf.layers.Dense(1)])
    model.compile("adam", "mse", gradient_accumulation_steps=accumulation)
    options = {"batch_size": 2, "verbose": 0, "distribution": uf.DataParallel(devices=devices)}
    model.fit(x, x[:, :1], **options)  # makes the engine
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        model.fit(x, x[:, :1], **options)
    names = [event.name for event in profile.events()]
    return {"all_reduces": sum(name == "c10d::allreduce_" for name in names)}
