"""Checkpoints that are partial, damaged or forged: each is named, and the one before it is found instead."""

import contextlib
import json
import os
import re
import shutil

import pytest

import checkpoint_tools as tools
from unifit.checkpoint import Checkpoint, newest
from unifit.checkpoint.files import facts_of
from unifit.errors import CheckpointError

FILES = ["state.json", *(f"{group}.safetensors" for group in tools.GROUPS[:-1]), "data-of-0.safetensors"]
ARRAY_FILES = FILES[1:]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with checkpoints after the steps 2 and 4."""
    folder = tmp_path_factory.mktemp("written")
    tools.write(folder, 2, 4)
    return folder


@pytest.fixture
def folder(written, tmp_path):
    """A copy of it, for the test to damage."""
    return shutil.copytree(written, tmp_path / "run")


def opened(path):
    found = Checkpoint.open(path)
    found.verify()
    return found


def assert_refused(folder, words=""):
    """The checkpoint after step 4 is refused with these words, and the one after step 2 found."""
    with pytest.raises(CheckpointError) as caught:
        opened(folder / "step-00000004")
    assert words in str(caught.value) and "step-00000004" in str(caught.value)
    passed_over = []
    found = tools.Folder(folder).newest(passed_over.append)
    assert tools.step_held(found) == found.state["step"] == 2
    assert passed_over == [str(caught.value)]
    assert newest(folder).state["step"] == 2


def test_whole_checkpoint_is_found(folder):
    assert tools.names(folder / "step-00000004") == sorted(FILES)
    found = newest(folder)
    assert tools.step_held(found) == found.state["step"] == 4
    assert found.groups == tools.GROUPS


def truncated(path):
    os.truncate(path, path.stat().st_size - 1)


def emptied(path):
    os.truncate(path, 0)


def longer(path):
    path.write_bytes(path.read_bytes() + b"\0")


def flipped(position):
    def flip(path):
        content = bytearray(path.read_bytes())
        content[int(position * (len(content) - 1))] ^= 1
        path.write_bytes(content)

    return flip


def missing(path):
    path.unlink()


def folder_instead(path):
    path.unlink()
    path.mkdir()


def linked(path):
    outside = path.parent.parent / "outside"
    path.rename(outside)
    path.symlink_to(outside)


@pytest.mark.parametrize("file", ARRAY_FILES)
@pytest.mark.parametrize(
    "damage",
    [truncated, emptied, longer, flipped(0), flipped(0.5), flipped(1), missing, folder_instead, linked],
    ids=["truncated", "emptied", "longer", "flipped_first", "flipped_mid", "flipped_last", "missing", "folder", "link"],
)
def test_damaged_file_is_named(folder, file, damage):
    damage(folder / "step-00000004" / file)
    assert_refused(folder, file)


@pytest.mark.parametrize("damage", [truncated, emptied, missing, folder_instead])
def test_damaged_state_is_named(folder, damage):
    path = folder / "step-00000004" / "state.json"
    if damage is truncated:
        os.truncate(path, path.stat().st_size // 2)
    else:
        damage(path)
    assert_refused(folder, "state.json")


def edited(folder, edit):
    """Writes what a function makes of state.json's value."""
    path = folder / "step-00000004" / "state.json"
    state = json.loads(path.read_text())
    path.write_text(json.dumps(edit(state) or state))


@pytest.mark.parametrize(
    "text",
    ["[]", "1", '"unifit-checkpoint"', "{}", "[" * 100_000, "\ud800", '{"format": "another", "version": 1}'],
    ids=["list", "number", "string", "empty", "deep", "no_utf8", "another_format"],
)
def test_state_that_is_none_is_named(folder, text):
    (folder / "step-00000004" / "state.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    assert_refused(folder, "state.json")


@pytest.mark.parametrize("version", [2, 10**30, "1", None, 1.5, [1]])
def test_other_versions_are_refused(folder, version):
    edited(folder, lambda state: state.update(version=version))
    assert_refused(folder, f"version {version!r}")


OUTSIDE = ["../x", "/etc/passwd", "a/b", "..", ".", "", "..\\x", "C:x", "x\0y", "../step-00000002/weights.safetensors"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_names_that_leave_the_folder_are_refused(folder, name):
    """Also when there is such a file, with the size and the hash that are given."""
    target = folder / "step-00000004" / name if "\0" not in name else None
    facts = {"bytes": 1, "sha256": ""}
    if target is not None and target.is_file():
        facts = facts_of(target)

    def edit(state):
        state["files"][name] = facts
        state["arrays"]["weights"] = dict.fromkeys(state["arrays"]["weights"], name)

    edited(folder, edit)
    assert_refused(folder, f"names the file {name!r}")


def test_array_in_a_file_that_is_not_listed_is_refused(folder):
    (folder / "step-00000004" / "other.safetensors").write_bytes(b"")
    edited(folder, lambda state: state["arrays"]["weights"].update({"weights.a": "other.safetensors"}))
    assert_refused(folder, "other.safetensors")


def test_array_that_a_file_lacks_is_named(folder):
    edited(folder, lambda state: state["arrays"]["weights"].update({"weights.c": "weights.safetensors"}))
    with pytest.raises(CheckpointError, match=re.escape("weights.safetensors' has no array 'weights.c'")):
        opened(folder / "step-00000004").arrays("weights")


VALUES = [None, True, -1, 10**40, 1.5, "x", [], [1], ["x"], {}, {"x": 1}, {"x": {}}, {"x": {"x": []}}, {"x": ["x"]}]


def test_state_of_any_form_is_read_or_refused(folder):
    """Whatever stands in state.json, nothing but a CheckpointError comes of it."""
    path = folder / "step-00000004" / "state.json"
    text = path.read_text()
    for key in json.loads(text):
        for value in VALUES:
            edited(folder, lambda state: state.update({key: value}))  # noqa: B023
            with contextlib.suppress(CheckpointError):
                found = opened(folder / "step-00000004")
                for group in found.groups:
                    found.arrays(group)
            path.write_text(text)
    for part in ("files", "arrays"):
        for name in json.loads(text)[part]:
            for value in VALUES:
                edited(folder, lambda state: state[part].update({name: value}))  # noqa: B023
                with contextlib.suppress(CheckpointError):
                    found = opened(folder / "step-00000004")
                    for group in found.groups:
                        found.arrays(group)
                path.write_text(text)


@pytest.mark.parametrize("key", list(tools.contents(1).state))
def test_state_without_one_of_its_keys_is_named(folder, key):
    edited(folder, lambda state: state.pop(key) and state)
    assert_refused(folder, "state.json")


@pytest.mark.parametrize(
    "name", ["step-5", "step-0000000x", "step-00000005x", "Step-00000005", ".step-00000005", "step-"]
)
def test_folders_of_other_names_are_no_checkpoints(folder, name):
    shutil.copytree(folder / "step-00000004", folder / name)
    assert tools.Folder(folder).steps() == [2, 4]


def test_steps_of_more_digits_are_the_newest(folder):
    shutil.copytree(folder / "step-00000004", folder / "step-100000000")
    assert tools.Folder(folder).steps() == [2, 4, 100_000_000]


def test_file_with_a_steps_name_is_no_checkpoint(folder):
    (folder / "step-00000009").write_text("")
    assert newest(folder).state["step"] == 4


def test_damaged_pointer_is_of_no_account(folder):
    (folder / "latest").write_text("step-00000002\n")
    assert newest(folder).state["step"] == 4
    (folder / "latest").write_bytes(b"\xff../../x")
    assert newest(folder).state["step"] == 4


def test_none_is_found_where_all_are_damaged_or_none_is(folder, tmp_path):
    for step in (2, 4):
        truncated(folder / f"step-0000000{step}" / "weights.safetensors")
    assert newest(folder) is None
    (tmp_path / "empty").mkdir()
    assert newest(tmp_path / "empty") is None
    with pytest.raises(CheckpointError, match="no folder"):
        Checkpoint.open(tmp_path / "nowhere")


def test_newest_is_of_the_last_fit(folder):
    tools.write(folder / "fit-1", 1)
    tools.write(folder / "fit-10", 1)
    shutil.copytree(folder, folder.parent / "copy")
    assert newest(folder).path.parent.name == "fit-10"
    shutil.rmtree(folder / "fit-10" / "step-00000001")
    assert newest(folder).path.parent.name == "fit-1"
