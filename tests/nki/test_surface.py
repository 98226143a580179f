"""docs/nki.md: its examples run, its table is that of the code."""

import re
from pathlib import Path

from torch_neuronx.nki import collectives, isa, language, surface

DOCS = Path(__file__).resolve().parent.parent.parent / "docs" / "nki.md"


def test_examples_run(tmp_path):
    code = "\n".join(re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S))
    script = tmp_path / "kernel.py"
    script.write_text(code)
    exec(compile(code, str(script), "exec"), {"__name__": "docs"})


def test_table_is_up_to_date():
    assert surface.table().strip() in DOCS.read_text(), "run python -m torch_neuronx.nki.surface and put its output into docs/nki.md"


def test_the_work_lists_are_complete():
    assert len(surface.functions(isa)) == 52
    assert len(surface.functions(language)) == 103 + len({"average", "bypass", "prelu", "static_cast"})
    assert len(surface.functions(collectives)) == 11
