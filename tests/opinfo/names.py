"""Names of the variants in PyTorch's op table, and the share of them that a quick run takes."""

import json
import os
import subprocess
import sys
import zlib
from datetime import date


def variant_names() -> list[str]:
    """``OpInfo.full_name`` of every entry. Read in a process of its own: importing the table takes seconds and much memory."""
    table = "torch.testing._internal.common_methods_invocations"
    code = f"import json; from {table} import op_db; print(json.dumps([op.full_name for op in op_db]))"
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout.splitlines()[-1]))


def slice_of_today(names: list[str], slices: int) -> tuple[int, list[str]]:
    """One of ``slices`` fixed shares, by the day, or the one that OPINFO_SLICE names; and its number, to run it again."""
    chosen = int(os.environ.get("OPINFO_SLICE", date.today().toordinal())) % slices
    return chosen, [name for name in names if zlib.crc32(name.encode()) % slices == chosen]
