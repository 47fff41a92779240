"""A run that is killed again and again ends as the one that was not: bit for bit, whatever the moments.

Each kill is SIGKILL to all processes of the job, at a moment drawn along the run (kill_moments.py, killer.py).
UNIFIT_KILLS=30 kills so often in each run, and on torch in one of 4 processes besides. That takes minutes a run: give
pytest `-o faulthandler_timeout=3600` with it, and `-s` to see the moments.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest

from kill_moments import REST, SAVE, WINDOW, drawn
from kill_script import EPOCH_STEPS, STEPS, STOPS_AFTER, train_to_the_end
from unifit.checkpoint import Checkpoint, newest
from worker import environments

SCRIPT = Path(__file__).parents[1] / "kill_script.py"
ASKED = os.environ.get("UNIFIT_KILLS")
KILLS = {"torch": (6, 3), "jax": (6, 3), "tensorflow": (4, 3)}  # of one process, and of two, unless UNIFIT_KILLS says
LEG_LIMIT_S = 100.0  # a start in each process, on a busy machine
LEG_S = 60.0  # on average


def kills_of(processes):
    """How often a run is killed."""
    return int(ASKED) if ASKED else KILLS[os.environ["UNIFIT_BACKEND"]][processes - 1]


def runs(processes, *marks):
    """The parameter for a job of so many processes, with a time limit."""
    return pytest.param(processes, marks=[pytest.mark.timeout(max(400, LEG_S * kills_of(processes))), *marks])


jobs_of = [runs(1), runs(2)]
if ASKED:
    jobs_of.append(runs(4, pytest.mark.backends("torch", reason="each process costs a start, and has one device")))


def run_leg(backend, processes, folder, name, moment):
    """Runs the script until its processes have ended; returns their exit codes, and what they said."""
    logs = [folder / f"{name}-{rank}.log" for rank in range(processes)]
    started = []
    try:
        for rank, environment in enumerate(environments(backend, processes, processes)):
            command = [sys.executable, "-W", "ignore", SCRIPT, folder, name, json.dumps(moment._asdict())]
            with open(logs[rank], "w") as log:
                options = {"stdout": log, "stderr": log, "env": environment, "start_new_session": True}
                started.append(subprocess.Popen([*command, str(rank), str(processes)], **options))
        (folder / f"{name}.pids").write_text(json.dumps([process.pid for process in started]))
        codes = [process.wait(LEG_LIMIT_S) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    return codes, "\n".join(log.read_text()[-3000:] for log in logs)


def kill_all_along(backend, processes, folder, moments):
    """Runs the script anew after each of its kills, up to the last one; returns where each of them was."""
    happened = []
    for number, moment in enumerate(moments):
        codes, said = run_leg(backend, processes, folder, f"leg{number}", moment)
        assert codes == [-signal.SIGKILL] * processes, f"{moment} did not happen, but {codes}:\n{said}"
        where = (folder / f"leg{number}.killed").read_text().splitlines()[-1]
        happened.append(json.loads(where))
        assert happened[-1] is not None, f"{moment}: the job was killed when it was no longer there"
        print(f"  {number + 1:2}. {where}")
    return happened


def assert_same_checkpoint(folder, straight):
    """The last checkpoints of two runs are the same in every fact and to the last bit; no litter lies about."""
    got, want = newest(folder), newest(straight)
    assert got.state == want.state  # the sizes and hashes of the files among it
    assert set(want.groups) == {"weights", "optimizer", "ema", "callbacks"}
    for group in want.groups:
        arrays, expected = got.arrays(group), want.arrays(group)
        assert arrays.keys() == expected.keys()
        for name, array in arrays.items():
            assert array.tobytes() == expected[name].tobytes(), f"{group}: {name}"
    assert (want.state["step"], want.state["finished"]) == (STEPS, True)
    assert (folder / "latest").read_text() == f"{got.path.name}\n"
    assert [path.name for path in folder.glob(".*")] == []
    kept = list(folder.glob("step-*"))
    assert len(kept) in (2, 3)  # the one that was gone on from is kept besides
    for path in kept:
        Checkpoint.open(path).verify()


def assert_same_history(folder, straight):
    """Every epoch was seen, by each leg that came to its end with the figures of the uninterrupted run."""
    whole = json.loads((straight / "end.json").read_text())
    assert whole["epochs"] == list(range(STOPS_AFTER))
    figures = [{name: values[epoch] for name, values in whole["history"].items()} for epoch in whole["epochs"]]
    seen = [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]
    assert list(dict.fromkeys(entry["epoch"] for entry in seen)) == whole["epochs"]
    for entry in seen:
        assert entry["logs"] == figures[entry["epoch"]], f"epoch {entry['epoch']}"
    last = json.loads((folder / "end.json").read_text())
    assert last["epochs"] == whole["epochs"][-len(last["epochs"]) :]
    for name, values in last["history"].items():
        assert values == whole["history"][name][-len(values) :]


@pytest.mark.parametrize("processes", jobs_of)
def test_killed_run_ends_as_the_uninterrupted_one(backend_name, run_on, tmp_path, processes):
    straight, folder = tmp_path / "straight", tmp_path / "killed"
    straight.mkdir()
    folder.mkdir()

    def to_the_end(place):
        if processes == 1:
            return [train_to_the_end(1, place, "end")]
        return run_on(processes, "train_to_the_end", processes=processes, folder=str(place), name="end")

    weights = to_the_end(straight)
    kills = kills_of(processes)
    moments = drawn(kills, STEPS, EPOCH_STEPS, processes, seed=f"{backend_name} {processes}")
    print(f"\n{backend_name}, {processes} processes, {STEPS} steps:")
    happened = kill_all_along(backend_name, processes, folder, moments)
    kinds = Counter(where["kind"] for where in happened)
    print(f"  {kills} kills: {dict(kinds)}")
    assert len(happened) == kills and min(kinds[SAVE], kinds[WINDOW]) >= kills / 3
    assert kills < 5 or kinds[REST]

    with pytest.warns(UserWarning, match=f"{STEPS}' was not written to its end") if processes == 1 else nullcontext():
        resumed = to_the_end(folder)
    assert_same_checkpoint(folder / "run", straight / "run")
    assert_same_history(folder, straight)
    best = newest(straight / "run").state["callbacks"]["EarlyStopping"]["best_epoch"]
    assert best < STOPS_AFTER - 1  # so the weights at the end are those of an epoch that a dead process saw
    for rank, (got, want) in enumerate(zip(resumed, weights, strict=True)):
        assert got.keys() == want.keys()
        for name in want:
            assert got[name].tobytes() == want[name].tobytes(), f"rank {rank}: {name}"
