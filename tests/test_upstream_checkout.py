"""``make upstream`` on a tiny checkout made here; PyTorch's own is the user's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.upstream.checkout import BadCheckout, Run, check_version, on_cpu, read_results, short

ROOT = Path(__file__).resolve().parent.parent
HEAD = """
import os, signal, time, torch
from torch.testing._internal.common_utils import TestCase, run_tests
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests
import unittest
"""
VIEW_OPS = """
class TestViews(TestCase):
    @dtypes(torch.float32, torch.int8)
    def test_view_shares(self, device, dtype):
        x = torch.zeros(4, dtype=dtype, device=device)
        x.view(2, 2).fill_(1)
        self.assertEqual(x, torch.ones(4, dtype=dtype, device=device))

    def test_only_on_the_cpu(self, device):
        self.assertEqual(torch.device(device).type, "cpu")

    def test_takes_the_process_down(self, device):
        if torch.device(device).type == "neuron":
            os.kill(os.getpid(), signal.SIGSEGV)

    def test_skipped(self, device):
        self.skipTest("not today")

    @unittest.expectedFailure
    def test_expected_failure(self, device):
        self.fail("known")

class TestForCuda(TestCase):
    def test_add(self, device):
        self.assertEqual(torch.ones(2, device=device) + 1, torch.full((2,), 2.0, device=device))

instantiate_device_type_tests(TestViews, globals())
instantiate_device_type_tests(TestForCuda, globals(), only_for="cuda")
"""
# A file that does not end; what it did until then counts.
RANDOM = """
class TestRandom(TestCase):
    def test_a_number(self, device):
        self.assertEqual(torch.rand(3, device=device).shape, (3,))

    def test_b_sleeps(self, device):
        time.sleep(600)

instantiate_device_type_tests(TestRandom, globals())
"""
OPENREG = """
import torch_openreg

class TestRNG(TestCase):
    def test_generator(self):
        self.assertEqual(torch.Generator(device="openreg:1").device, torch.device("openreg:1"))
        self.assertIs(torch.openreg, torch_openreg)
"""


@pytest.fixture
def checkout(tmp_path):
    openreg = tmp_path / "test/cpp_extensions/open_registration_extension/torch_openreg/tests"
    openreg.mkdir(parents=True)
    (tmp_path / "version.txt").write_text(torch.__version__.partition("+")[0] + "a0\n")
    (tmp_path / "test" / "test_view_ops.py").write_text(HEAD + VIEW_OPS)
    (tmp_path / "test" / "test_random.py").write_text(HEAD + RANDOM)
    (openreg / "test_rng.py").write_text(HEAD + OPENREG)
    (tmp_path / "test" / "conftest.py").write_text("raise RuntimeError('for the CI of PyTorch')")
    return tmp_path


def run(*arguments):
    call = [sys.executable, "-m", "tests.upstream.checkout", *map(str, arguments)]
    return subprocess.run(call, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=250)


def test_files_on_both_devices(checkout, tmp_path):
    ran = run(checkout, "--files", "test_view_ops.py", "openreg", "--json", tmp_path / "out.json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = {line.split()[0]: line.split()[1:] for line in ran.stdout.splitlines()}
    #                                neuron run, passed, failed, skipped; cpu; short
    assert lines["test_view_ops"] == ["7", "4", "2", "1", "6", "5", "0", "1", "2"], ran.stdout
    assert lines["openreg/test_rng"] == ["1", "1", "0", "0", "-", "-", "-", "-", "-"], ran.stdout
    saved = json.loads((tmp_path / "out.json").read_text())["test_view_ops"]
    assert sorted(saved["short"]) == ["TestViewsCPU.test_only_on_the_cpu_cpu", "TestViewsCPU.test_takes_the_process_down_cpu"]
    assert saved["cpu"]["outcomes"]["TestViewsCPU.test_expected_failure_cpu"] == "xfailed"
    assert (
        "import torch_openreg" in (checkout / "test/cpp_extensions/open_registration_extension/torch_openreg/tests/test_rng.py").read_text()
    )


@pytest.mark.full
def test_a_file_that_does_not_end_and_one_that_is_missing(checkout):
    ran = run(checkout, "--files", "test_random", "test_nothing", "--limit", 30, "-n", 2)
    assert ran.returncode == 1
    ended, missing = ran.stdout.splitlines()[1:]
    assert "neuron: stopped after 30 s; cpu: stopped after 30 s" in ended, ran.stdout
    assert ended.split()[1:][:9] == ["2", "1", "1", "0", "2", "1", "1", "0", "0"], ran.stdout
    assert "not in this checkout" in missing


def test_a_file_that_cannot_be_read(checkout):
    (checkout / "test" / "test_random.py").write_text("import no_such_module\n")
    ran = run(checkout, "--files", "test_random")
    assert ran.stdout.splitlines()[1].split()[3] == "1", ran.stdout  # a failure, not silence


def test_another_version_is_refused(checkout):
    check_version(checkout)
    (checkout / "version.txt").write_text("2.12.1\n")
    with pytest.raises(BadCheckout, match=r"is PyTorch 2\.12\.1, but .* is installed\. Make one: git clone .* --branch v2\.13\.0 "):
        check_version(checkout)
    with pytest.raises(BadCheckout, match="is no checkout of PyTorch"):
        check_version(checkout / "test")
    assert "Make one: git clone" in run(checkout).stderr


def test_names_on_the_cpu():
    assert on_cpu("TestViewOpsNEURON.test_t_neuron_int8") == "TestViewOpsCPU.test_t_cpu_int8"
    assert on_cpu("TestViewOpsPRIVATEUSE1.test_t_privateuse1") == "TestViewOpsCPU.test_t_cpu"
    assert on_cpu("TestPlain.test_neurons") == "TestPlain.test_neurons"


def test_a_missing_or_skipped_test_falls_short():
    cpu = Run({"ACPU.a_cpu": "passed", "ACPU.b_cpu": "xfailed", "ACPU.c_cpu": "skipped", "ACPU.d_cpu": "passed"})
    ours = Run({"ANEURON.a_neuron": "skipped", "ANEURON.b_neuron": "passed", "ANEURON.c_neuron": "failed"})
    assert short({"cpu": cpu, "neuron": ours}) == ["ACPU.a_cpu", "ACPU.d_cpu"]


def test_a_failure_hides_no_other_entry(tmp_path):
    entries = '<testcase classname="m.A" name="a"/><testcase classname="m.A" name="a"><error/></testcase>'
    (tmp_path / "r.xml").write_text(f"<testsuites><testsuite>{entries}</testsuite></testsuites>")
    assert read_results(tmp_path / "r.xml") == {"A.a": "failed"}
