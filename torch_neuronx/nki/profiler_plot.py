"""The timeline as a picture. Imported only when one is asked for: matplotlib is heavy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch_neuronx.nki.cost_parameters import DMA_ENGINES
from torch_neuronx.nki.cost_schedule import COMPUTE

if TYPE_CHECKING:
    from torch_neuronx.nki.profiler import Profile


def plot(profile: Profile, path: Path, start_us: float, stop_us: float) -> Path:
    """Draws the spans between two times as a PNG; see ``Profile.plot``."""
    try:
        from matplotlib import colormaps
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise ImportError("Profile.plot draws with matplotlib, which is not installed: pip install torchneuron[tools]") from error

    used = {(span.core, lane) for span in profile.spans for lane in span.lanes}
    order = [*(e.name for e in COMPUTE), *(f"dma{n}" for n in range(DMA_ENGINES))]
    lanes = [(core, lane) for core in range(profile.cores) for lane in order if (core, lane) in used]
    rows = {lane: len(lanes) - 1 - n for n, lane in enumerate(lanes)}
    opcodes = sorted({span.instruction.opcode for span in profile.spans})
    colours = {opcode: colormaps["tab20"](n % 20) for n, opcode in enumerate(opcodes)}

    bars: dict[tuple[int, str, str], list[tuple[float, float]]] = {}
    for span in profile.spans:
        start, end = span.start / 1000, span.end / 1000
        if end >= start_us and start <= stop_us:
            for lane in span.lanes:
                bars.setdefault((span.core, lane, span.instruction.opcode), []).append((start, end - start))

    figure = Figure(figsize=(14, 1.5 + 0.28 * len(lanes)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for (core, lane, opcode), intervals in bars.items():
        axes.broken_barh(intervals, (rows[core, lane] - 0.4, 0.8), facecolors=colours[opcode], linewidth=0)
    labels = [f"core {core} {lane}" if profile.cores > 1 else lane for core, lane in lanes]
    axes.set_yticks([rows[lane] for lane in lanes], labels)
    axes.set_xlim(start_us, stop_us)
    axes.set_xlabel("microseconds (modelled, not measured)")
    axes.set_title(f"{profile.name} on {profile.target.name}: {profile.time_us:.2f} us modelled, bound by {profile.bound}")
    axes.legend(handles=[Patch(color=colours[o], label=o) for o in opcodes], loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    figure.savefig(path, format="png", dpi=110)
    return path
