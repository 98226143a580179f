"""``python -m benchmarks.nki_calibration`` writes docs/nki-calibration.md: the cost model against every published measurement.

``--check`` compares with the file instead and fails when it differs; ``--quick`` looks only at the points that are traced in seconds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.nki_calibration.points import BARS, CHECK, DMA_CHART, POINTS, Point, chart_share
from torch_neuronx.nki.cost import COSTS
from torch_neuronx.nki.cost_parameters import PARAMETERS, CostParameters

PAGE = Path(__file__).resolve().parents[2] / "docs" / "nki-calibration.md"

_INTRO = """# NKI cost model: calibration

This page is written by `python -m benchmarks.nki_calibration`; a test checks that it is current.

**Every time that `kernel.profile` reports is modelled.** Nothing here was run on Neuron hardware: the model is compared with times that
others published. "fit" marks the measurements that a parameter was chosen to meet, "check" those that were held out, "bound" those that
are published only as an upper limit. Kernels are our own, with the loop structure that the publication describes
(`benchmarks/nki_calibration/kernels.py`); where it describes less than all, that is an error source of its own. The machine of the
self-attention times is not stated: trn1 is assumed.

No parameter was fitted to a "check" point, but few of them were blind. That trn1's DMA is a rate without a cost per row was chosen because
all four matmul times ask for it (the rate itself comes from one); that PSUM banks go to whoever is ready, instead of in program order,
after a first comparison with the self-attention rows; how our mamba v1 kernel broadcasts B and C (through the Tensor Engine; its
publication does not say) after one with its row. The convolutions were blind.
"""

_LEFT_OUT = """
Published times that the model is not compared with, and why: layernorm (300, 1000) on trn1, implausibly slow for its shape; mamba v2 at
7168 and 8192 steps, where SBUF spills (the model reports an overflow instead of modelling spills); adaptive average pooling, resize,
rmsnorm with QKV and the attention backward pass of nki-samples, whose thresholds are limits without a machine and whose kernels'
structure is not described; conv2d on a 32x16 image, whose channels are not stated.
"""


def row(point: Point, modelled: float) -> str:
    error = f"{100 * point.error(modelled):+.1f} %" if point.use != "bound" else ("within" if modelled <= point.measured_us else "OVER")
    cells = (point.what, point.shape, point.target, _number(point.measured_us), _number(modelled), error, point.use, point.source)
    return f"| {' | '.join(cells)} |"


def _number(us: float) -> str:
    return f"{us:,.3f}" if us < 10 else f"{us:,.1f}" if us < 1000 else f"{us:,.0f}"


def page(times: dict[int, float]) -> str:
    """The text, from the modelled time of each point of ``POINTS``."""
    held_out = {g: [abs(p.error(times[i])) for i, p in enumerate(POINTS) if p.use == CHECK and p.group == g] for g in BARS}
    lines = [_INTRO, "## Times in microseconds", ""]
    lines += ["| kernel | shape | target | published | modelled | error | use | source |", "|---|---|---|---|---|---|---|---|"]
    lines += [row(point, times[i]) for i, point in enumerate(POINTS)]
    lines += ["", "| held-out points | number | bar | mean error | largest error |", "|---|---|---|---|---|"]
    for group, errors in held_out.items():
        mean = sum(errors) / len(errors)
        lines.append(f"| {group} | {len(errors)} | {100 * BARS[group]:.0f} % | {100 * mean:.1f} % | {100 * max(errors):.1f} % |")
    return "\n".join([*lines, _LEFT_OUT, tables()])


def tables() -> str:
    """What of the page does not depend on times."""
    lines = ["## DMA throughput by row length, trn2", "", "Share of the peak (all points used for the fit).", ""]
    lines += ["| bytes per partition | published | modelled |", "|---|---|---|"]
    lines += [f"| {run} | {share:.3f} | {chart_share(run):.3f} |" for run, share in DMA_CHART.items()]
    lines += ["", "## Parameters", "", "Rates in bytes per ns, times in ns, latencies in cycles of the engine that wrote.", ""]
    lines += [f"| parameter | {' | '.join(PARAMETERS)} | basis | what it is |", "|---|" + "---|" * (len(PARAMETERS) + 2)]
    for name, basis, why in CostParameters.describe():
        values = " | ".join(f"{getattr(p, name):g}" for p in PARAMETERS.values())
        lines.append(f"| `{name}` | {values} | {basis} | {why} |")
    lines += [
        "",
        "## Cycles by opcode",
        "",
        "N: elements per partition of the widest operand. Where several generations differ, the text says so.",
        "",
    ]
    lines += ["| opcode | cycles | basis |", "|---|---|---|"]
    lines += [f"| `{name}` | {entry.text} | {entry.basis} |" for name, entry in COSTS.items()]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nki_calibration", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the page instead of writing it")
    parser.add_argument("--quick", action="store_true", help="with --check: only the points that are traced in seconds")
    args = parser.parse_args()
    if args.quick:
        stale = [line for point in POINTS if point.quick and (line := row(point, point.model())) not in PAGE.read_text().splitlines()]
        print("\n".join(stale) or "current")
        return bool(stale)
    times = {}
    for i, point in enumerate(POINTS):
        times[i] = point.model()
        print(row(point, times[i]), file=sys.stderr, flush=True)
    text = page(times)
    if args.check:
        return text != PAGE.read_text()
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
