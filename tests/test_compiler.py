"""The compiler driver against the stand-in neuronx-cc: flags, errors, cache, many processes, kills. Nothing here is AWS's compiler."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.standin_sdk.install import install
from torch_neuronx.compiler import Cache, CompilerError, CompilerNotFound, CompilerTimeout, compile_hlo, counters, find_compiler
from torch_neuronx.compiler import __main__ as command
from torch_neuronx.compiler.errors import error_of, findings
from torch_neuronx.compiler.neff import read_header, unpack
from torch_neuronx.compiler.options import Options, cache_from_environment, from_environment, split_flags


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("sdk"))


@pytest.fixture
def cache(sdk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """An empty cache, and the stand-in on PATH."""
    monkeypatch.setenv("PATH", f"{sdk}:{os.environ['PATH']}")
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STANDIN_CC_CALLS", str(tmp_path / "calls"))
    for name in ("NEURON_CC_FLAGS", "NEURON_PLATFORM_TARGET_OVERRIDE", "NEURON_LOGICAL_NC_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return Cache(cache_from_environment())


def calls(tmp_path: Path) -> int:
    path = tmp_path / "calls"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture(scope="module")
def hlo() -> bytes:
    import torch

    from torch_neuronx.lowering import to_hlo, to_stablehlo

    return to_hlo(to_stablehlo(lambda x: x.softmax(-1) + 1, torch.zeros(4, 4), target="trn2"))


# ---- options ----


def test_target_and_lnc() -> None:
    assert from_environment(environment={}) == Options("trn2", 2)
    assert from_environment(environment={"TORCH_NEURONX_EMULATED_INSTANCE": "trn3-gen1"}).target == "trn3"
    assert from_environment(environment={"NEURON_PLATFORM_TARGET_OVERRIDE": "trn1"}) == Options("trn1", 1)
    flags = {"NEURON_CC_FLAGS": "--target trn3 -O1 --lnc=1 --auto-cast=none --cache_dir=/x --retry_failed_compilation"}
    assert from_environment(environment=flags) == Options("trn3", 1, ("-O1", "--auto-cast=none"))
    assert from_environment("trn2", 1, environment=flags).arguments() == [
        "--framework=XLA",
        "--target=trn2",
        "--lnc=1",
        "-O1",
        "--auto-cast=none",
    ]
    with pytest.raises(CompilerError, match=r'unknown compile target "trn9".*NEURON_PLATFORM_TARGET_OVERRIDE'):
        from_environment(environment={"NEURON_PLATFORM_TARGET_OVERRIDE": "trn9"})
    with pytest.raises(CompilerError, match="NEURON_CC_FLAGS cannot be read"):
        split_flags("--a 'b")


def test_cache_settings() -> None:
    both = {"NEURON_COMPILE_CACHE_URL": "file:///b", "TORCH_NEURONX_NEFF_CACHE_DIR": "/a"}
    assert str(cache_from_environment(both).directory) == "/a"
    assert str(cache_from_environment({"NEURON_COMPILE_CACHE_URL": "file:///b"}).directory) == "/b"
    settings = cache_from_environment(both | {"NEURON_CC_FLAGS": "--cache_dir /c --no_cache", "TORCH_NEURONX_NEFF_CACHE_SIZE": "5M"})
    assert (str(settings.directory), settings.enabled, settings.max_bytes) == ("/c", False, 5 << 20)
    with pytest.raises(CompilerError, match=r"s3://bucket.*folder that all ranks see"):
        cache_from_environment({"NEURON_COMPILE_CACHE_URL": "s3://bucket"})
    with pytest.raises(CompilerError, match="TORCH_NEURONX_NEFF_CACHE_SIZE"):
        cache_from_environment({"TORCH_NEURONX_NEFF_CACHE_SIZE": "much"})


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompilerNotFound, match="pip install neuronx-cc"):
        find_compiler()


# ---- errors ----


def test_errors_name_the_op_the_line_and_the_remedy() -> None:
    log = "INFO: start\n[NCC_EMOD025] Dynamic shape is not supported: instruction '%add.5' has shape 'f32[<=4]'.\n"
    error = error_of(log, 70, "step", {"add.5": "jit(main)/aten::add.Tensor#1/add"}, ["a.py:1", "b.py:7"])
    assert (error.code, error.op, error.line) == ("EMOD025", "aten::add.Tensor", "b.py:7")
    assert "NCC_EMOD025" in str(error) and "b.py:7" in str(error) and "What to do" in str(error)
    assert [item.code for item in findings("NCC_EVRF001: a\nx\n[NCC_EVRF001] a\n[NCC_EOOM001] b")] == ["EVRF001", "EOOM001"]
    assert "ended by signal 9" in str(error_of("some\nlast words", -9, "step"))
    assert "last words" in str(error_of("some\nlast words", 1, "step"))


def test_refusals_come_from_the_compiler_once(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from torch_neuronx.lowering import Program, lower

    program = Program.from_call(torch.ops.aten.mul.Tensor, (torch.zeros(2, dtype=torch.complex64), torch.zeros(2, dtype=torch.complex64)))
    program.calls[0].location = "train.py:12"
    lowered = lower(program)  # not for a chip, so with complex numbers
    with pytest.raises(CompilerError, match=r"NCC_EVRF004.*\n.*real and imaginary"):
        compile_hlo(lowered.hlo(), name="step", lines=lowered.lines)
    with pytest.raises(CompilerError, match="From the cache"):
        compile_hlo(lowered.hlo())
    assert calls(tmp_path) == 1
    monkeypatch.setenv("NEURON_CC_FLAGS", "--retry_failed_compilation")
    with pytest.raises(CompilerError, match="EVRF004"):
        compile_hlo(lowered.hlo())
    assert calls(tmp_path) == 2


def test_unknown_flag(cache: Cache, hlo: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_CC_FLAGS", "--fast-please")
    with pytest.raises(CompilerError, match=r"NCC_EARG002.*--fast-please"):
        compile_hlo(hlo)


def test_time_limit(cache: Cache, hlo: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_CC_SLEEP", "60")
    monkeypatch.setenv("TORCH_NEURONX_COMPILE_TIMEOUT", "2")
    start = time.monotonic()
    with pytest.raises(CompilerTimeout, match="TORCH_NEURONX_COMPILE_TIMEOUT"):
        compile_hlo(hlo)
    assert time.monotonic() - start < 40
    assert not cache.entries()  # a timeout is not remembered as a refusal


# ---- the cache ----


def test_second_time_is_a_hit(cache: Cache, hlo: bytes, tmp_path: Path) -> None:
    before = dict(counters)
    first = compile_hlo(hlo)
    second = compile_hlo(hlo)
    assert first.compiled and not second.compiled and first.neff == second.neff
    assert calls(tmp_path) == 1 and counters["compiles"] == before["compiles"] + 1 and counters["hits"] == before["hits"] + 1
    header = read_header(first.neff)
    assert "standin" in header.build and header.lnc == 2
    table = json.loads(unpack(first.neff)["tensors.json"])
    assert table["inputs"] == [{"dtype": "f32", "shape": [4, 4], "name": "input0"}]
    (entry,) = cache.entries(check=True)
    assert entry.state == "ok" and (entry.path / "model.hlo_module.pb").read_bytes() == hlo


def test_damaged_entries_are_built_again(cache: Cache, hlo: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compile_hlo(hlo)
    (entry,) = cache.entries()
    neff = entry.path / "model.neff"
    good = neff.read_bytes()
    neff.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert compile_hlo(hlo).neff == good and calls(tmp_path) == 2
    neff.write_bytes(good[:100])
    assert command.main(["cache", "verify"]) == 0 and "1 corrupt entries removed" in capsys.readouterr().out
    assert not cache.entries()


def test_eviction_takes_the_least_recently_used(cache: Cache, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for index, age in enumerate((300, 100, 200)):
        folder = cache.directory / "neuronxcc-1" / f"MODULE_{index}"
        folder.mkdir(parents=True)
        (folder / "model.neff").write_bytes(bytes(1000))
        (folder / "model.json").write_text(json.dumps({"size": 1000, "sha256": ""}))
        os.utime(folder / "model.json", (time.time() - age,) * 2)
    assert command.main(["cache", "prune", "--max-size", "2K"]) == 0
    assert [entry.path.name for entry in cache.entries()] == ["MODULE_1"]
    assert command.main(["cache", "list"]) == 0
    assert "1 entries" in capsys.readouterr().out


_RANK = """
import sys
from torch_neuronx.compiler import compile_hlo
print(len(compile_hlo(open(sys.argv[1], "rb").read()).neff))
"""


def ranks(path: Path, count: int) -> "list[subprocess.Popen[str]]":
    command_line = [sys.executable, "-c", _RANK, str(path)]
    return [
        subprocess.Popen(command_line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        for _ in range(count)
    ]


@pytest.mark.full
@pytest.mark.timeout(600)
def test_eight_processes_compile_once(cache: Cache, hlo: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_CC_SLEEP", "5")
    path = tmp_path / "m.pb"
    path.write_bytes(hlo)
    done = [process.communicate(timeout=500) for process in ranks(path, 8)]
    assert len({out for out, _ in done}) == 1 and done[0][0].strip().isdecimal(), done
    assert calls(tmp_path) == 1


@pytest.mark.timeout(600)
def test_killed_while_compiling(cache: Cache, hlo: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others go on at once: a lock ends with its process, and half an entry does not exist."""
    monkeypatch.setenv("STANDIN_CC_SLEEP", "3")
    path = tmp_path / "m.pb"
    path.write_bytes(hlo)
    (first,) = ranks(path, 1)
    deadline = time.monotonic() + 200
    while not calls(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    (second,) = ranks(path, 1)
    out, err = second.communicate(timeout=300)
    assert out.strip().isdecimal(), err
    assert calls(tmp_path) == 2
    (entry,) = cache.entries(check=True)
    assert entry.state == "ok"
    assert [item.name for item in entry.path.parent.iterdir()] == [entry.path.name]  # nothing of the killed one is left


def test_precompile(cache: Cache, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nx = torch.ones(4, 4, device='neuron')\ny = (x @ x).relu()\nz = x.nonzero()\nfor _ in range(3): y = y + 1\n"
    )
    from torch_neuronx.compiler.precompile import precompile

    summary = precompile(str(script), [], "trn2")
    assert summary.compiled == 4, summary  # ones, mm, relu, add
    assert command.main(["precompile", str(script), "--target", "trn2", "--", "--steps", "1"]) == 0
    assert list(summary.not_lowered) == ["aten::nonzero"] and not summary.failed
    again = precompile(str(script), [], "trn2")
    assert (again.compiled, again.cached) == (0, 4)
