"""`import nki` and the names of older releases, in fresh interpreters."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

NAMES = str(Path(__file__).resolve().parent.parent.parent / "torch_neuronx" / "nki" / "names")
IMPORTS = """
import nki, nki.language as nl, nki.isa as nisa, nki.collectives, nki.typing, nki.isa.constants
from nki.isa import core_barrier, dge_mode, engine, oob_mode, reduce_cmd
import neuronxcc.nki as beta, neuronxcc.nki.language, neuronxcc.nki.isa.constants, neuronxcc.nki.typing, neuronxcc.nki.compiler
import neuron_dtypes
import torch_neuronx.nki
assert nki is torch_neuronx.nki and nl is torch_neuronx.nki.language and nisa is torch_neuronx.nki.isa
assert beta.isa is neuronxcc.nki.isa is not nisa
assert nki.language.__spec__.name == "torch_neuronx.nki.language"
"""


@pytest.mark.parametrize("first", ["import torch", "import sys; assert 'torch' not in sys.modules"])
def test_both_orders(run_python, first):
    done = run_python(first + IMPORTS, timeout=200, PYTHONPATH=NAMES)
    assert done.returncode == 0, done.stderr


def test_torch_alone_offers_the_names(run_python):
    done = run_python("import torch, nki; assert callable(nki.jit)", timeout=200)
    assert done.returncode == 0, done.stderr


def test_the_device_does_not_load_nki(run_python):
    done = run_python("import sys, torch; torch.ones(1, device='neuron'); assert 'torch_neuronx.nki' not in sys.modules", timeout=200)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("first", ["import torch", ""])
def test_the_vendors_package_wins(run_python, tmp_path, first):
    for name in ("nki", "neuronxcc"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("VENDOR = True\n")
    code = f"import sys\nsys.path.insert(1, {str(tmp_path)!r})\n{first}\nimport nki, neuronxcc\nassert nki.VENDOR and neuronxcc.VENDOR"
    done = run_python(code, timeout=200, PYTHONPATH=NAMES)
    assert done.returncode == 0, done.stderr


def test_a_line_in_a_pth_file_leads_to_the_names():
    line = (Path(NAMES).parent / "torchneuron_nki.pth").read_text().strip()
    assert NAMES.endswith(line) and sys.version_info >= (3, 10)


def test_a_wheel_gives_the_names(tmp_path):
    """What a wheel holds (the package, and what CMake installs), in a fresh environment that sees this one's other packages."""

    def run(*command, **options):
        done = subprocess.run(command, capture_output=True, text=True, **options)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    root = Path(NAMES).parents[2]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    pip = {**environment, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    build = ["wheel", "--no-build-isolation", "--no-deps", "--disable-pip-version-check", "-Cwheel.cmake=false"]  # not compiled again
    run(sys.executable, "-m", "pip", *build, "-w", str(tmp_path), str(root), env=pip)
    (wheel,) = tmp_path.glob("torchneuron-*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv"))
    python = str(tmp_path / "venv" / "bin" / "python")
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", str(wheel), env=pip)
    run("cmake", "--install", str(root / "build" / "dev"), "--prefix", str(site))
    (site / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))  # found after the wheel's
    code = IMPORTS + f"assert torch_neuronx.__file__.startswith({str(site)!r}), torch_neuronx.__file__"
    run(python, "-c", code, cwd=tmp_path, env=environment)
