"""The data guide's code runs from top to bottom."""

import re
from pathlib import Path

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "data.md"


def test_data_guide_runs():
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 6
    exec(compile("\n".join(blocks), str(GUIDE), "exec"), {})
