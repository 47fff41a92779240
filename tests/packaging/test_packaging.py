"""What is shipped: the four packages in wheel and sdist, an install that works, one line for a missing framework."""

import configparser
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"unifit", "unifit_jax", "unifit_tensorflow", "unifit_torch"}
ENTRY_POINTS = {"jax": "unifit_jax", "tensorflow": "unifit_tensorflow", "torch": "unifit_torch"}

pytestmark = [
    pytest.mark.backends("jax", reason="what is shipped does not depend on the backend"),
    pytest.mark.timeout(300),
]


def hide(*modules: str) -> str:
    """Code for the start of a fresh interpreter: every finder overlooks the modules, as if they were not installed."""
    return f"""
import sys
class Overlook:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in {modules!r} else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = [Overlook(finder) for finder in sys.meta_path]
"""


def run(*command: object, cwd: Path, **variables: str) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(
        [sys.executable, *map(str, command)], cwd=cwd, env=os.environ | variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the wheel and the sdist, built from a copy so that the checkout stays as it is."""
    source = tmp_path_factory.mktemp("source") / "unifit"
    unwanted = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "dist", "runs")
    shutil.copytree(ROOT, source, ignore=unwanted)
    output = tmp_path_factory.mktemp("built")
    run("-m", "build", "--no-isolation", "--outdir", output, source, cwd=output)
    return output


@pytest.fixture(scope="module")
def wheel(built) -> Path:
    (path,) = built.glob("*.whl")
    return path


def tops_with_code(names: list[str]) -> set[str]:
    return {name.split("/")[0] for name in names if name.endswith(".py") and "/" in name}


def test_wheel_holds_the_packages_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert tops_with_code(names) == PACKAGES
    shipped = {name for name in names if name.endswith(".py")}
    for package in PACKAGES:
        home = ROOT if package == "unifit" else ROOT / "backends"
        assert {str(path.relative_to(home)) for path in (home / package).rglob("*.py")} <= shipped
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_wheel_names_its_backends(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        parser = configparser.ConfigParser()
        parser.read_string(archive.read(name).decode())
    assert dict(parser["unifit.backends"]) == ENTRY_POINTS


def test_sdist_holds_the_sources_and_no_tests(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert {"pyproject.toml", "README.md", "LICENSE"} <= set(names)
    assert tops_with_code(names) == {"backends", "unifit"}
    assert tops_with_code([name.removeprefix("backends/") for name in names if name.startswith("backends/")]) == (
        PACKAGES - {"unifit"}
    )


def test_install_imports_with_only_jax_present(wheel, tmp_path):
    target = tmp_path / "site"
    run("-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", target, wheel, cwd=tmp_path)
    script = hide("tensorflow", "torch") + (
        "import unifit\n"
        "from importlib.metadata import version\n"
        "loaded = sorted({'jax', 'tensorflow', 'torch', 'unifit_jax', 'unifit_torch'} & set(sys.modules))\n"
        "print(unifit.__file__, unifit.__version__ == version('unifit'), *loaded, sep='\\n')\n"
    )
    lines = run("-c", script, cwd=tmp_path, PYTHONPATH=str(target), UNIFIT_BACKEND="jax").splitlines()
    assert lines == [str(target / "unifit" / "__init__.py"), "True", "jax", "unifit_jax"]


def test_missing_framework_is_told_in_one_line(tmp_path):
    script = hide("torch") + (
        "try:\n"
        "    import unifit\n"
        "except Exception as error:\n"
        "    print(type(error).__module__, type(error).__name__, error, sep='\\n')\n"
    )
    module, name, *message = run("-c", script, cwd=tmp_path, UNIFIT_BACKEND="torch").splitlines()
    assert (module, name) == ("unifit.errors", "BackendNotInstalledError")
    assert len(message) == 1
    assert "torch" in message[0].replace('pip install "unifit[torch]"', "")
    assert 'pip install "unifit[torch]"' in message[0]
