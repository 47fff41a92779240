"""What only the jax column can show: its programs' collectives, how processes join and leave a job, its own copies."""

import json
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import unifit as uf
import worker
from unifit.contract.job import Job
from unifit.contract.values import MicroBatch, Window

pytestmark = pytest.mark.backends("jax", reason="it looks into the jax engine and jax.distributed")

LIMIT_S = 90
ENDS_WITHIN_S = 15
EXACT = dict(rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_one_reduction_after_the_loop(run_on, accumulation):
    found = run_on(2, "jax_collectives", accumulation=accumulation)[0]
    assert found["in_loops"] == 0
    assert found["outside"] == 1


def test_synchronised_statistics_add_their_own(run_on):
    found = run_on(2, "jax_collectives", accumulation=4, normalised=True)[0]
    assert found["in_loops"] > 0  # the statistics of each micro-batch, in its forward and backward pass
    assert found["outside"] == 1


def test_one_device_has_no_collective(run_on):
    found = run_on(1, "jax_collectives", accumulation=4)[0]
    assert found["in_loops"] == found["outside"] == 0


# Processes that these tests start themselves, as they look at how they end.


def run_processes(script, processes=1, devices=1, awaited=None):
    """Runs a script in the processes of one job; returns each one's exit code, output and time to its end.

    When those whose numbers are `awaited` have ended, the others are killed.
    """
    port, started, since = worker._free_port(), [], time.monotonic()
    for number in range(processes):
        environment = os.environ | {"UNIFIT_CPU_DEVICES": str(devices), "OMP_NUM_THREADS": "1"}
        if processes > 1:
            environment |= {
                "UNIFIT_PROCESS": str(number),
                "UNIFIT_PROCESSES": str(processes),
                "UNIFIT_LOCAL_PROCESS": str(number),
                "UNIFIT_LOCAL_PROCESSES": str(processes),
                "UNIFIT_COORDINATOR": f"127.0.0.1:{port}",
            }
        command = [sys.executable, "-W", "ignore", "-c", script]
        started.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        )
    results = []
    try:
        for process in started if awaited is None else [started[number] for number in awaited]:
            output, _ = process.communicate(timeout=max(1.0, LIMIT_S + since - time.monotonic()))
            results.append((process.returncode, output, time.monotonic() - since))
    finally:
        for process in started:
            process.kill()
            process.wait()
            process.stdout.close()
    return results


def answer(output):
    """The last line that is a JSON object."""
    return json.loads([line for line in output.splitlines() if line.startswith("{")][-1])


PROGRAMS = """
import json, re
import numpy as np
import unifit as uf
from unifit.contract.values import MicroBatch, Window

def collectives(program):
    kinds = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
    return len(re.findall(rf" (?:{kinds})(?:-start)?\\(", program.compile().as_text()))

found = {}
for accumulation in (1, 8):
    r = np.random.default_rng(0)
    x, y = r.normal(size=(16, 5)).astype("float32"), r.normal(size=(16, 3)).astype("float32")
    model = uf.Sequential([uf.layers.Dense(8, "tanh"), uf.layers.Dense(3)])
    model.compile("adamw", "mse", metrics=["mae"], gradient_accumulation_steps=accumulation, clip_norm=1.0)
    model.fit(x, y, batch_size=2, verbose=0, shuffle=False, distribution=uf.DataParallel(devices=2))
    engine = model.trainer.engine
    found[f"traces {accumulation}"] = engine.traces
    own = 2 // engine.placement.processes
    lone = MicroBatch(x[:own], y[:own], None, np.ones(own, bool))
    window = MicroBatch(*(None if a is None else np.stack([a] * accumulation) for a in lone))
    placed = engine.place(Window(window, accumulation, True, 0))
    found[f"train {accumulation}"] = collectives(engine._train.lower(*engine.arguments(engine.zeros(False), placed)))
    scored = engine._evaluate.lower(engine.store.values, engine.zeros(True), engine.devices.rows(lone))
    found[f"evaluate {accumulation}"] = collectives(scored)
print(json.dumps(found), flush=True)
"""


@pytest.mark.parametrize(("processes", "devices"), [(1, 2), (2, 1)])
def test_a_window_has_one_collective_and_an_evaluation_none(processes, devices):
    for code, output, _ in run_processes(PROGRAMS, processes, devices):
        assert code == 0, output
        found = answer(output)
        assert (found["train 1"], found["train 8"]) == (1, 1)
        assert (found["evaluate 1"], found["evaluate 8"]) == (0, 0)
        assert (found["traces 1"], found["traces 8"]) == (1, 1)


ALONE = """
import json
import numpy as np
import unifit as uf

r = np.random.default_rng(0)
x, y = r.normal(size=(16, 5)).astype("float32"), r.normal(size=(16, 3)).astype("float32")
model = uf.Sequential([uf.layers.Dense(8), uf.layers.BatchNormalization(), uf.layers.Dense(3)])
model.compile("adam", "mse")
model.fit(x, y, batch_size=8, verbose=0)
devices = model.trainer.engine.devices
found = {}
if devices.placement.process == 0:  # without the other process
    found["eager"] = np.asarray(model(x)).tolist()
    before = model.get_weights()
    model.set_weights(before)
    found["again"] = np.asarray(model(x)).tolist()
    model(x, training=True)  # moves the statistics
    found["moved"] = not np.allclose(before[4], model.get_weights()[4])
    model.set_weights(before)
found["predicted"] = model.predict(x, batch_size=8, verbose=0).tolist()

store = devices.store
own = f"test/{devices.placement.process}"
store.put(own, "one")
store.put(own, "two \\u00e9\\nlines")
found["read"] = [store.get(f"test/{process}", 30.0) is not None and store.get(own, 0) for process in (0, 1)]
found["absent"] = [store.get("test/absent", 0), store.get("test/absent", 0.7)]
store.delete("test/absent")
store.delete(own)
found["deleted"] = store.get(own, 0)
print(json.dumps(found), flush=True)
"""


def test_a_process_computes_alone_and_talks_through_the_store():
    results = run_processes(ALONE, processes=2)
    for code, output, _ in results:
        assert code == 0, output
        found = answer(output)
        assert found["read"][1] == "two \u00e9\nlines"
        assert found["absent"] == [None, None]
        assert found["deleted"] is None
    zero, one = (answer(output) for _, output, _ in results)
    assert zero["moved"]
    np.testing.assert_allclose(zero["eager"], zero["predicted"], **EXACT)
    np.testing.assert_array_equal(zero["eager"], zero["again"])
    np.testing.assert_array_equal(zero["predicted"], one["predicted"])


RAISES = """
import time
from unifit.backend import backend
from unifit.launch.environment import current_job

job = current_job()
devices = backend.distribution.prepare(None, job)
if job.process == {failing}:
    print("failing at", time.time(), flush=True)
    raise ValueError("on purpose")
time.sleep({others_stay_s})
raise RuntimeError("the other one failed")
"""


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failed_process_does_not_wait_for_the_others(failing):
    script = RAISES.format(failing=failing, others_stay_s=LIMIT_S)
    ((code, output, _),) = run_processes(script, processes=2, awaited=[failing])
    seconds = time.time() - float(output.split("failing at ")[1].split()[0])
    assert code == 1, output
    assert "on purpose" in output
    assert seconds < ENDS_WITHIN_S


@pytest.mark.parametrize("failing", [0, 1])
def test_processes_that_fail_together_show_their_own_errors(failing):
    results = run_processes(RAISES.format(failing=failing, others_stay_s=1), processes=2)
    for number, (code, output, _) in enumerate(results):
        assert code == 1, output
        assert ("on purpose" if number == failing else "the other one failed") in output


EARLY = """
import time
from unifit.backend import backend
from unifit.launch.environment import current_job

job = current_job()
devices = backend.distribution.prepare(None, job)
if job.process == 1 - {staying}:
    raise SystemExit
time.sleep(4)
print("stayed", devices.store.get("exit/{staying}", 0), flush=True)
"""


@pytest.mark.parametrize("staying", [0, 1])
def test_a_process_that_is_done_leaves_the_others_their_time(staying):
    results = run_processes(EARLY.format(staying=staying), processes=2)
    assert [code for code, _, _ in results] == [0, 0], results
    assert "stayed None" in results[staying][1]


# Joining, in threads of this process


def job(process, processes, port):
    return Job("unifit", process, processes, process, processes, f"127.0.0.1:{port}")


def meet_all(jobs):
    """What `meet` says to each of the jobs' processes: None, or its error's text."""
    import unifit_jax.rendezvous as rendezvous

    said = {}

    def go(number, one):
        try:
            said[number] = rendezvous.meet(one)
        except uf.errors.StartError as error:
            said[number] = str(error)

    threads = [threading.Thread(target=go, args=given) for given in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    return [said[number] for number in range(len(jobs))]


@pytest.fixture
def impatient(monkeypatch):
    import unifit_jax.rendezvous as rendezvous

    monkeypatch.setattr(rendezvous, "START_TIMEOUT_S", 1.5)


def test_processes_meet_and_leave_the_port_free():
    port = worker._free_port()
    assert meet_all([job(process, 3, port) for process in (2, 0, 1)]) == [None] * 3
    assert meet_all([job(process, 3, port) for process in (1, 2, 0)]) == [None] * 3


def test_a_missing_process_is_named_to_all(impatient):
    port = worker._free_port()
    for said in meet_all([job(0, 4, port), job(2, 4, port)]):
        assert "Process(es) 1, 3 did not report" in said
        assert f"127.0.0.1:{port}" in said


def test_a_missing_process_0_is_named(impatient):
    (said,) = meet_all([job(1, 2, worker._free_port())])
    assert "Process 1 cannot reach process 0" in said


@pytest.mark.parametrize(
    ("strange", "text"), [((1, 3), "Two processes were started as number 1"), ((1, 2), "number 1 of 2")]
)
def test_contradicting_processes_are_refused(impatient, strange, text):
    port = worker._free_port()
    said = meet_all([job(0, 3, port), job(1, 3, port), job(*strange, port)])
    assert text in said[0]


def test_a_busy_port_is_named(impatient):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (said,) = meet_all([job(0, 2, port)])
    assert f"Port {port}" in said
    assert "in use" in said


# The engine


def test_probe_changes_nothing():
    model = uf.Sequential([uf.layers.Dense(4), uf.layers.BatchNormalization(), uf.layers.Dense(3)])
    model.compile("adam", "mse", gradient_accumulation_steps=2)
    x, y = np.ones((8, 5), np.float32), np.zeros((8, 3), np.float32)
    model.fit(x, y, batch_size=4, verbose=0)
    engine = model.trainer.engine
    before, slots, traces = model.get_weights(), engine.read_slots(), engine.traces
    shaped = MicroBatch(x.reshape(2, 4, 5), y.reshape(2, 4, 3), None, np.ones((2, 4), bool))
    engine.probe(engine.place(Window(shaped, 2, True, 5)))
    assert engine.traces == traces
    after = engine.read_slots()
    assert all(np.array_equal(slots[name], after[name]) for name in slots)
    assert all(map(np.array_equal, before, model.get_weights()))


def test_out_of_memory_is_known_by_what_xla_says():
    import jax

    from unifit_jax.engine import is_out_of_memory

    said = "RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes."
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(jax.errors.JaxRuntimeError(said))
    assert not is_out_of_memory(jax.errors.JaxRuntimeError("INVALID_ARGUMENT: shapes"))
    assert not is_out_of_memory(KeyError(said))
    with pytest.raises(Exception, match="(?i)out of memory|RESOURCE_EXHAUSTED") as caught:
        jax.block_until_ready(jax.numpy.zeros((2**40, 2**6), "float32"))
    assert is_out_of_memory(caught.value)
