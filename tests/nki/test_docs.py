"""The NKI pages: their code runs, and it prints what the page says it prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import NamedTuple

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ["nki-tutorial.md", "nki-kernels.md"]
_BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    code: str
    output: str | None
    line: int


def blocks(text: str) -> list[Block]:
    return [Block(m["code"], m["output"], text[: m.start("code")].count("\n")) for m in _BLOCK.finditer(text)]


def run(page: str) -> list[tuple[Block, str]]:
    """Runs the page's blocks in one namespace, with line numbers of the page; gives what each printed."""
    text = (DOCS / page).read_text()
    namespace: dict[str, object] = {"__name__": page}
    printed = []
    for block in blocks(text):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile("\n" * block.line + block.code, page, "exec"), namespace)
        printed.append((block, out.getvalue()))
    return printed


@pytest.mark.parametrize("page", PAGES)
def test_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    found = run(page)
    assert found
    if page == "nki-tutorial.md":
        assert (tmp_path / "plain.png").exists() and (tmp_path / "plain.json").exists()
    for block, printed in found:
        if block.output is not None:
            assert printed == block.output, f"{page}:{block.line + 1}"
