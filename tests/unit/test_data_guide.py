"""The data guide's code runs from top to bottom."""

import re
from pathlib import Path

from resume_tools import feed_of, run

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "data.md"


def test_data_guide_runs():
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 6
    names = {}
    exec(compile("\n".join(blocks), str(GUIDE), "exec"), names)
    make = names["Shuffled"]
    straight = run(feed_of(make()), 3)
    for after in (1, 10, 14, 29):
        stopped = run(feed_of(make()), 3, after)
        assert stopped.rows + run(feed_of(make()), 3, going_on=stopped.stop).rows == straight.rows
