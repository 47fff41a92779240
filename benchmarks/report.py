"""What was measured as tables, as JSON and as a plot."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import statistics
from pathlib import Path
from typing import Any

from benchmarks.workloads import Setting

PACKAGES = (
    "unifit torch jax jaxlib optax tensorflow tensorflow-cpu keras numpy lightning accelerate transformers"
).split()


def machine() -> dict[str, Any]:
    """What the figures depend on besides the code."""
    facts: dict[str, Any] = {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
    }
    if hasattr(os, "sysconf"):
        facts["memory_bytes"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return facts


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def versions() -> dict[str, str]:
    """Of the packages that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def write_json(path: str, settings: dict[str, Any], results: dict[str, Any]) -> None:
    """Everything: machine, versions, date, what was asked for and what was found."""
    facts = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "arguments": settings,
    }
    Path(path).write_text(json.dumps(facts | results, indent=1) + "\n")


# Tables


def spread(ratio: dict[str, float]) -> str:
    return f"{ratio['median']:.2f} [{ratio['min']:.2f} - {ratio['max']:.2f}]"


def step_table(results: list[dict[str, Any]]) -> str:
    """A line a setting and way: milliseconds a step, and the ratio of epochs of one round to the native loop's."""
    lines = [f"{'setting':<46}{'':<21}{'ms/step':>10}   {'ratio to native':<24}{'ratio to unifit'}"]
    for found in results:
        title = f"{found['setting']['backend']} {Setting(**found['setting']).title()}"
        if "error" in found:
            lines.append(f"{title:<46}failed: {found['error'].splitlines()[-1]}")
            continue
        for name, values in found["ms_per_step"].items():
            ours, native = spread(found["ratio_to_unifit"][name]), spread(found["ratio_to_native"][name])
            milliseconds = statistics.median(values)
            lines.append(
                f"{title:<46}{name:<21}{milliseconds:>10.3f}   {native if name != 'native' else '':<24}"
                f"{ours if name != 'unifit' else ''}".rstrip()
            )
            title = ""
    return "\n".join(lines)


def start_table(starts: list[dict[str, Any]], imports: list[dict[str, Any]]) -> str:
    """Time to the first step, peak memory, and imports: medians, and the median of the pairs' differences."""
    lines = [f"{'fresh processes':<46}{'native':>10}{'unifit':>10}   difference [min - max]"]
    for found in starts:
        title = f"{found['setting']['backend']} {found['setting']['workload']}"
        if "error" in found:
            lines.append(f"{title:<46}failed: {found['error'].splitlines()[-1]}")
            continue
        seconds = [[run["first_step_s"] for run in found[way]] for way in ("native", "unifit")]
        lines.append(_pair_line(f"{title}: first step done, s", *seconds, digits=2))
        peaks = [[run["peak_bytes"] / 2**20 for run in found[way]] for way in ("native", "unifit")]
        ratio = statistics.median(b / a for a, b in zip(*peaks, strict=True))
        lines.append(f"{_pair_line(f'{title}: peak memory, MiB', *peaks, digits=0)}   ratio {ratio:.3f}")
    for found in imports:
        lines.append(_pair_line(f"{found['backend']}: import, s", found["framework"], found["unifit"], digits=2))
    return "\n".join(lines)


def _pair_line(title: str, native: list[float], unifit: list[float], digits: int) -> str:
    differences = [b - a for a, b in zip(native, unifit, strict=True)]
    middle, least, most = statistics.median(differences), min(differences), max(differences)
    return (
        f"{title:<46}{statistics.median(native):>10.{digits}f}{statistics.median(unifit):>10.{digits}f}   "
        f"{middle:+.{digits}f} [{least:+.{digits}f} - {most:+.{digits}f}]"
    )


# Plot


def write_plot(path: str, results: list[dict[str, Any]]) -> None:
    """Bars of every way's ratio to the native loop, with least and greatest, a panel a backend."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as pyplot

    measured = [found for found in results if "error" not in found]
    backends = list(dict.fromkeys(found["setting"]["backend"] for found in measured))
    figure, panels = pyplot.subplots(
        len(backends), 1, squeeze=False, figsize=(2 + 1.6 * len(measured) / max(1, len(backends)), 3.2 * len(backends))
    )
    for panel, backend in zip(panels[:, 0], backends, strict=True):
        mine = [found for found in measured if found["setting"]["backend"] == backend]
        names = list(dict.fromkeys(name for found in mine for name in found["ratio_to_native"] if name != "native"))
        for number, name in enumerate(names):
            places, heights, below, above = [], [], [], []
            for place, found in enumerate(mine):
                ratio = found["ratio_to_native"].get(name)
                if ratio is not None:
                    places.append(place + (number + 1) / (len(names) + 1) - 0.5)
                    heights.append(ratio["median"])
                    below.append(ratio["median"] - ratio["min"])
                    above.append(ratio["max"] - ratio["median"])
            panel.bar(places, heights, 0.9 / (len(names) + 1), yerr=[below, above], label=name, error_kw={"lw": 0.8})
        panel.axhline(1.0, color="black", linewidth=0.8)
        panel.set_xticks(range(len(mine)), [Setting(**found["setting"]).title() for found in mine], fontsize=7)
        panel.set_ylabel("time a step / native loop")
        panel.set_title(backend)
        panel.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
