"""``python -m torch_neuronx.lowering --coverage [--functions] [--json]``."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torch_neuronx.lowering", description="What lowers to StableHLO for Trainium.")
    parser.add_argument("--coverage", action="store_true", required=True, help="go through PyTorch's operators")
    parser.add_argument("--functions", action="store_true", help="PyTorch's op table (OpInfo) instead of the overloads; takes minutes")
    parser.add_argument("--json", action="store_true", help="one JSON object: a verdict for each")
    options = parser.parse_args()
    from torch_neuronx.lowering import coverage

    verdicts = list(coverage.functions() if options.functions else coverage.overloads())
    if options.json:
        print(json.dumps({"verdicts": [asdict(verdict) for verdict in verdicts]}))
    else:
        print(coverage.report(verdicts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
