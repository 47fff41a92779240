"""Checkpoints of jobs of several processes: an error of one is raised on all."""

from unifit.checkpoint import newest


def test_folder_that_vanishes_ends_training_on_every_process_after_the_same_step(run_on, tmp_path):
    folder = tmp_path / "run"
    ranks = run_on(2, "folder_gone", processes=2, folder=str(folder))
    for rank in ranks:
        assert rank["kind"] == "CheckpointError" and str(folder) in str(rank["text"])
        assert rank["calls"].tolist() == ["train_begin", "train_end"]
    assert ranks[0]["steps"] == ranks[1]["steps"] < 200
    assert (ranks[0]["kernel"] == ranks[1]["kernel"]).all()
    assert newest(tmp_path / "elsewhere").state["step"] == 4


def test_file_in_place_of_the_folder_is_named_on_every_process(run_on, tmp_path):
    (tmp_path / "file").write_text("")
    for rank in run_on(2, "folder_gone", processes=2, folder=str(tmp_path / "file")):
        assert rank["kind"] == "CheckpointError" and "cannot be used" in str(rank["text"])
        assert rank["steps"] == 0
