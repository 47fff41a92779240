"""README, guides, docstring examples and example scripts run, and what they claim holds."""

import doctest
import importlib
import json
import pkgutil
import re
from pathlib import Path

import pytest

import unifit
from script_runs import run_script

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = {page: re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S) for page in PAGES}


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCKS[page]], ids=lambda page: page.name)
def test_code_of_page_runs(page, tmp_path, backend_name):
    if backend_name == "torch" and page.name == "distribution.md":
        pytest.skip("the page says itself that its two runs are two jobs on torch")
    script = tmp_path / "page.py"
    script.write_text("\n\n".join(BLOCKS[page]))
    run_script(script, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_page_exist(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


MODULES = [m.name for m in pkgutil.walk_packages(unifit.__path__, "unifit.") if ".contract" not in m.name]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    names = vars(unifit) | vars(unifit.layers) | {"unifit": unifit, "uf": unifit}
    result = doctest.testmod(module, extraglobs={**names, **vars(module)}, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


def test_digits_example_reaches_its_accuracy_on_two_devices(tmp_path, backend_name):
    row = json.loads(run_script(ROOT / "examples" / "digits.py", tmp_path).splitlines()[-1])
    assert row["backend"] == backend_name and row["devices"] == 2
    assert row["val_accuracy"] >= 0.97


def test_digits_example_is_short():
    assert len((ROOT / "examples" / "digits.py").read_text().splitlines()) <= 60


def test_text_example_learns_on_two_devices(tmp_path, backend_name):
    row = json.loads(run_script(ROOT / "examples" / "text_gpt.py", tmp_path).splitlines()[-1])
    assert row["backend"] == backend_name and row["devices"] == 2
    assert row["losses"][-1] < 0.75 * row["losses"][0]
