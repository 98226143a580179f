"""Device memory: statistics, limits, reuse across streams, giving back, snapshots, and what happens when memory is full."""

import gc
import itertools
import pickle

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from torch_neuronx import _C

MiB = 1 << 20
GiB = 1 << 30


def empty(nbytes, device="neuron:0"):
    return torch.empty(nbytes, dtype=torch.uint8, device=device)


@pytest.fixture(autouse=True)
def clean_slate():
    """Each test starts and ends with nothing cached, and the default limits."""
    torch.neuron.init()
    gc.collect()
    torch.neuron.synchronize()
    torch.neuron.empty_cache()
    yield
    torch.neuron.set_per_process_memory_fraction(1.0, 0)


def busy(stream, seconds=0.2):
    """Queues about that much work on the stream."""
    with torch.neuron.stream(stream):
        work = torch.ones(400, 400, device="neuron")
        for _ in range(int(seconds * 1000)):
            work = work @ work
    return work


# ---- Statistics. ----


def test_statistics_follow_a_tensor():
    before = torch.neuron.memory_allocated()
    torch.neuron.reset_peak_memory_stats()
    x = empty(3 * MiB)
    assert torch.neuron.memory_allocated() - before == 3 * MiB
    assert torch.neuron.memory_reserved() >= torch.neuron.memory_allocated()
    del x
    assert torch.neuron.memory_allocated() == before
    assert torch.neuron.max_memory_allocated() == before + 3 * MiB
    torch.neuron.reset_peak_memory_stats()
    assert torch.neuron.max_memory_allocated() == before


def test_statistics_have_the_keys_of_cuda():
    empty(10)
    stats = torch.neuron.memory_stats()
    sums = ["allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes", "inactive_split_bytes"]
    counts = ["allocation", "segment", "active", "inactive_split"]
    for key in sums + counts:
        for pool in ("all", "small_pool", "large_pool"):
            for metric in ("current", "peak", "allocated", "freed"):
                assert isinstance(stats[f"{key}.{pool}.{metric}"], int)
    for key in ("num_alloc_retries", "num_ooms", "num_tensor_frees", "max_split_size", "oversize_allocations.current"):
        assert isinstance(stats[key], int)


def test_accelerator_reads_the_same_statistics():
    x = empty(2 * MiB)
    memory = torch.accelerator.memory
    assert memory.memory_allocated() == torch.neuron.memory_allocated() >= x.nbytes
    assert memory.memory_reserved() == torch.neuron.memory_reserved()
    assert memory.max_memory_reserved() == torch.neuron.max_memory_reserved()
    ours = torch.neuron.memory_stats()
    for key, value in memory.memory_stats().items():
        assert ours[key] == value, key
    assert memory.get_memory_info()[1] == 24 * GiB
    memory.reset_peak_memory_stats()
    memory.reset_accumulated_memory_stats()
    assert memory.memory_stats()["allocation.all.allocated"] == 0
    del x
    memory.empty_cache()


def test_each_device_has_its_own_statistics():
    x = empty(5 * MiB, "neuron:1")
    with torch.neuron.device(1):
        assert torch.neuron.memory_allocated() >= x.nbytes
    assert torch.neuron.memory_allocated("neuron:1") - torch.neuron.memory_allocated(0) >= 4 * MiB
    assert torch.neuron.memory_allocated(torch.device("neuron", 1)) == torch.neuron.memory_allocated(1)


def test_zero_bytes_take_no_memory():
    before = torch.neuron.memory_stats()["allocation.all.allocated"]
    x = empty(0)
    assert (x.data_ptr(), x.device) == (0, torch.device("neuron:0"))
    assert torch.neuron.memory_stats()["allocation.all.allocated"] == before


def test_summary_is_a_table():
    text = torch.neuron.memory_summary()
    assert "Allocated memory" in text and "from small pool" in text
    assert len({len(line) for line in text.splitlines()}) == 1
    assert "from small pool" not in torch.neuron.memory_summary(abbreviated=True)


@pytest.mark.parametrize("call", ["memory_stats", "mem_get_info", "reset_peak_memory_stats", "get_per_process_memory_fraction"])
def test_a_device_that_does_not_exist_is_refused(call):
    with pytest.raises(RuntimeError, match="device index 99"):
        getattr(torch.neuron, call)(99)
    with pytest.raises(ValueError, match="cpu"):
        getattr(torch.neuron, call)("cpu")


def test_statistics_open_no_device(run_python):
    done = run_python(
        "import torch; print(torch.neuron.memory_allocated(), dict(torch.neuron.memory_stats()), torch.neuron.empty_cache(),"
        " torch.accelerator.memory.memory_allocated(), torch.neuron.is_initialized())"
    )
    assert done.stdout == "0 {} None 0 False\n", done.stderr


# ---- Where memory lies. ----


def test_tensors_lie_in_device_memory():
    x = torch.ones(1000, device="neuron:1")
    assert _C._device_of_address(x.data_ptr()) == 1
    assert _C._device_of_address(x[999].data_ptr()) == 1
    assert _C._device_of_address(torch.ones(1000).data_ptr()) == -1
    assert _C._device_of_address(0) == -1


def test_empty_cache_gives_pages_back(run_python):
    code = """
import torch

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

x = torch.ones(64 << 20, dtype=torch.uint8, device="neuron")
torch.neuron.synchronize()
held = resident()
del x
torch.neuron.empty_cache()
print(held - resident() > 60 << 20, torch.neuron.memory_reserved())
"""
    done = run_python(code)  # a process in which nobody else holds memory
    assert done.stdout == "True 0\n", done.stderr


def test_free_memory_is_what_the_device_and_the_host_have(run_python):
    free, total = torch.neuron.mem_get_info()
    assert 0 < free <= total == torch.neuron.get_device_properties().total_memory
    code = """
import torch
before, _ = torch.neuron.mem_get_info(1)
x = torch.empty(100 << 20, dtype=torch.uint8, device="neuron:0")
print(before >> 20, before - torch.neuron.mem_get_info(1)[0] >> 20)
"""
    done = run_python(code, TORCH_NEURONX_HOST_MEMORY_LIMIT="300M")
    assert done.stdout == "300 100\n", done.stderr


# ---- Streams. ----


def test_a_block_used_on_another_stream_waits_for_it():
    side = torch.neuron.Stream()
    x = empty(3 * MiB)
    address = x.data_ptr()
    busy(side)
    x.record_stream(side)
    del x
    if not side.query():
        stats = torch.neuron.memory_stats()
        assert stats["active_bytes.all.current"] >= stats["allocated_bytes.all.current"]
        assert empty(3 * MiB).data_ptr() != address or side.query()
    torch.neuron.synchronize()
    stats = torch.neuron.memory_stats()
    assert stats["active_bytes.all.current"] == stats["allocated_bytes.all.current"]


def test_streams_do_not_share_what_they_free():
    side = torch.neuron.Stream()
    with torch.neuron.stream(side):
        address = empty(3 * MiB).data_ptr()
    x = empty(3 * MiB)
    assert x.data_ptr() != address
    with torch.neuron.stream(side):
        assert empty(3 * MiB).data_ptr() == address


def test_freed_memory_is_reused_in_stream_order():
    """Work that is still queued must not see what later work writes into the same memory."""
    total = torch.zeros((), dtype=torch.float64, device="neuron")
    for i in range(200):
        x = torch.full((50_000,), float(i), device="neuron")
        total += x.mean(dtype=torch.float64)
        del x
    assert total.item() == sum(range(200))


# ---- Memory is full. ----


def test_device_memory_full_names_the_device_and_the_next_op_works():
    kept = torch.ones(1000, device="neuron")
    torch.neuron.set_per_process_memory_fraction(64 * MiB / (24 * GiB), 0)
    ooms = torch.neuron.memory_stats()["num_ooms"]
    with pytest.raises(
        torch.OutOfMemoryError, match=r"neuron:0 is out of memory: the device's memory is full .*set_per_process_memory_fraction"
    ):
        empty(100 * MiB)
    assert torch.neuron.memory_stats()["num_ooms"] == ooms + 1
    assert (kept + 1).sum().item() == 2000
    torch.neuron.set_per_process_memory_fraction(1.0, 0)
    assert empty(100 * MiB).nbytes == 100 * MiB


def test_modelled_memory_full():
    with pytest.raises(torch.OutOfMemoryError, match=r"the request alone is larger than the device .*of 24\.00 GiB can still be had"):
        empty(25 * GiB)
    assert torch.ones(2, device="neuron").sum().item() == 2


def test_absurd_sizes_are_refused():
    with pytest.raises(torch.OutOfMemoryError):
        empty((1 << 63) - 1)
    with pytest.raises(RuntimeError):
        torch.empty(1 << 62, 1 << 62, device="neuron")
    assert torch.ones(2, device="neuron").sum().item() == 2


def test_cached_memory_makes_room_before_an_error():
    torch.neuron.set_per_process_memory_fraction(64 * MiB / (24 * GiB), 0)
    side = torch.neuron.Stream()
    with torch.neuron.stream(side):
        del_me = empty(40 * MiB)
        del del_me
    retries = torch.neuron.memory_stats()["num_alloc_retries"]
    x = empty(50 * MiB)
    assert torch.neuron.memory_stats()["num_alloc_retries"] == retries + 1
    assert x.nbytes == 50 * MiB


HOST_FULL = """
import torch
kept = torch.ones(1000, device="neuron")
held, error = [], None
try:
    for _ in range(1000):
        held.append(torch.ones(8 << 20, dtype=torch.uint8, device="neuron"))
except torch.OutOfMemoryError as full:
    error = str(full)
assert error and "the host's memory is full" in error and NAME in error, error
assert 1 < len(held), len(held)
assert (kept + 1).sum().item() == 2000
del held
assert torch.ones(8 << 20, dtype=torch.uint8, device="neuron:1")[0].item() == 1
print("survived")
"""


@pytest.mark.parametrize("variable, value", [("TORCH_NEURONX_HOST_MEMORY_LIMIT", "256M")])
def test_host_memory_full_says_so_and_the_next_op_works(run_python, variable, value):
    done = run_python(HOST_FULL.replace("NAME", repr(variable)), **{variable: value})
    assert done.stdout == "survived\n", done.stderr


def test_host_reserve_is_kept(run_python):
    with open("/proc/meminfo") as file:
        available = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable")) << 10
    # Wide margins: what other processes take or give back meanwhile changes what is available.
    spare, wanted = min(available // 8, 4 * GiB), min(available // 2, 8 * GiB)
    code = """
import sys, torch
try:
    torch.empty(int(sys.argv[1]), dtype=torch.uint8, device="neuron")
except torch.OutOfMemoryError as full:
    assert "TORCH_NEURONX_HOST_MEMORY_RESERVE" in str(full), full
    print("refused")
print(torch.ones(3, device="neuron").sum().item())
"""
    done = run_python(code, str(wanted), TORCH_NEURONX_HOST_MEMORY_RESERVE=str(available - spare))
    assert done.stdout == "refused\n3.0\n", done.stderr


@pytest.mark.parametrize(
    "environment, words",
    [
        ({"TORCH_NEURONX_HOST_MEMORY_LIMIT": "lots"}, ["TORCH_NEURONX_HOST_MEMORY_LIMIT", "lots", "512M"]),
        ({"TORCH_NEURONX_SEGMENT_ALLOCATOR_CONFIG": "kSplit=1"}, ["kSplit=1", "kMaxSplitSizeBytes"]),
        ({"NEURON_RT_VISIBLE_CORES": "7"}, ["core 7", "0 to 3"]),
        ({"TORCH_NEURONX_EMULATED_INSTANCE": "p5.48xlarge"}, ["p5.48xlarge", "trn2.48xlarge"]),
        ({"TORCH_NEURONX_TARGET": "trainium"}, ["the Neuron runtime cannot be loaded", "libnrt", "emulated"]),
    ],
)
def test_bad_settings_are_explained_at_each_use(run_python, environment, words):
    code = """
import torch
print(torch.neuron.device_count(), torch.ones(2).sum().item())
for _ in range(2):
    try:
        torch.ones(2, device="neuron")
    except RuntimeError as error:
        print(error)
"""
    done = run_python(code, **environment)
    first, *errors = done.stdout.splitlines()
    assert first == "0 2.0", done.stderr
    assert len(errors) >= 2 and done.stdout.count(words[0]) == 2
    for word in words:
        assert word in done.stdout


def test_too_little_address_space_is_explained(run_python):
    code = """
import resource, torch
resource.setrlimit(resource.RLIMIT_AS, (32 << 30, 32 << 30))
try:
    torch.ones(2, device="neuron")
except RuntimeError as error:
    print(error)
"""
    done = run_python(code)
    assert "ulimit -v" in done.stdout and "NEURON_RT_NUM_CORES" in done.stdout, done.stderr


# ---- Limits. ----


def test_fraction_is_checked():
    assert torch.neuron.get_per_process_memory_fraction() == 1.0
    torch.neuron.set_per_process_memory_fraction(0.5)
    assert torch.neuron.get_per_process_memory_fraction() == 0.5
    with pytest.raises(TypeError, match="float"):
        torch.neuron.set_per_process_memory_fraction(1)
    with pytest.raises(ValueError, match="0 to 1"):
        torch.neuron.set_per_process_memory_fraction(1.5)


# ---- Snapshots. ----


@pytest.fixture
def history():
    torch.neuron.memory._record_memory_history(max_entries=1000, clear_history=True)
    yield
    torch.neuron.memory._record_memory_history(None, clear_history=True)


def test_snapshot_knows_blocks_and_who_made_them(history):
    x = empty(3 * MiB)
    snapshot = torch.neuron.memory._snapshot()
    [block] = [b for s in snapshot["segments"] for b in s["blocks"] if b["address"] == x.data_ptr()]
    assert (block["state"], block["requested_size"]) == ("active_allocated", 3 * MiB)
    assert any(frame["name"] == "test_snapshot_knows_blocks_and_who_made_them" for frame in block["frames"])
    for segment in snapshot["segments"]:
        assert sum(b["size"] for b in segment["blocks"]) == segment["total_size"]
    del x
    actions = [entry["action"] for entry in torch.neuron.memory._snapshot()["device_traces"][0]]
    assert [a for a in actions if a in ("alloc", "free_requested", "free_completed")] == ["alloc", "free_requested", "free_completed"]


def test_snapshot_opens_in_the_visualiser(history, tmp_path):
    viz = pytest.importorskip("torch.cuda._memory_viz")
    kept = [empty(n * MiB) for n in (1, 3, 20)]
    empty(MiB)
    with pytest.raises(torch.OutOfMemoryError):
        empty(25 * GiB)
    file = tmp_path / "snapshot.pickle"
    torch.neuron.memory._dump_snapshot(str(file))
    with open(file, "rb") as opened:
        snapshot = pickle.load(opened)
    for plot in (viz.trace_plot, viz.segment_plot):
        assert "<html" in plot(snapshot).lower() or "<script" in plot(snapshot).lower()
    assert "alloc" in viz.trace(snapshot)
    assert "allocated" in viz.segsum(snapshot)
    for table in (viz.segments, viz.memory):
        assert "active_allocated" in table(snapshot, format_flamegraph=lambda lines: lines)  # the default downloads a script
    assert len(kept) == 3


def test_snapshot_without_history_has_no_stacks():
    x = empty(100)
    blocks = [b for s in torch.neuron.memory_snapshot() for b in s["blocks"] if b["address"] == x.data_ptr()]
    assert [b["frames"] for b in blocks] == [[]]


@pytest.mark.parametrize("arguments", [{"enabled": "some"}, {"context": "x"}, {"stacks": "c"}])
def test_history_refuses_what_it_does_not_know(arguments):
    with pytest.raises(ValueError, match="expected"):
        torch.neuron.memory._record_memory_history(**arguments)


def test_profiler_sees_memory():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        x = empty(3 * MiB)
        del x
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    assert sorted(e.nbytes() for e in events if abs(e.nbytes()) == 3 * MiB) == [-3 * MiB, 3 * MiB]


# ---- Any program. ----


class AllocatorMachine(RuleBasedStateMachine):
    """Allocates, frees and records on two streams; compares with what must be true whatever the allocator does."""

    def __init__(self):
        super().__init__()
        torch.neuron.synchronize()
        gc.collect()
        torch.neuron.empty_cache()
        self.live = []
        self.requested_before = torch.neuron.memory_stats()["requested_bytes.all.current"]
        self.streams = [torch.neuron.default_stream(), torch.neuron.Stream()]
        self.stamp = 0

    @rule(nbytes=st.one_of(st.integers(1, 5000), st.integers(1, 40 * MiB)), stream=st.integers(0, 1))
    def allocate(self, nbytes, stream):
        with torch.neuron.stream(self.streams[stream]):
            tensor = empty(nbytes)
            self.stamp = (self.stamp + 1) % 256
            tensor[:1].fill_(self.stamp)
            tensor[-1:].fill_(self.stamp)
        self.live.append((tensor, self.stamp))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data):
        self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), stream=st.integers(0, 1))
    def use_elsewhere(self, data, stream):
        tensor, _ = self.live[data.draw(st.integers(0, len(self.live) - 1))]
        torch.neuron.synchronize()
        with torch.neuron.stream(self.streams[stream]):
            tensor[:1].add_(0)
        tensor.record_stream(self.streams[stream])

    @rule()
    def empty_cache(self):
        torch.neuron.empty_cache()

    @rule()
    def synchronize(self):
        torch.neuron.synchronize()
        stats = torch.neuron.memory_stats()
        assert stats["active_bytes.all.current"] == stats["allocated_bytes.all.current"]
        assert all((t[0].item(), t[-1].item()) == (s, s) for t, s in self.live)

    @invariant()
    def blocks_are_apart(self):
        ranges = sorted((t.data_ptr(), t.nbytes) for t, _ in self.live)
        assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(ranges))

    @invariant()
    def statistics_agree(self):
        stats = torch.neuron.memory_stats()
        assert stats["requested_bytes.all.current"] - self.requested_before == sum(t.nbytes for t, _ in self.live)
        sums = [stats[f"{key}_bytes.all.current"] for key in ("reserved", "active", "allocated", "requested")]
        assert sums == sorted(sums, reverse=True)
        segments = torch.neuron.memory_snapshot()
        assert sum(s["total_size"] for s in segments if s["device"] == 0) == sums[0]
        assert sum(s["allocated_size"] for s in segments if s["device"] == 0) == sums[2]

    def teardown(self):
        self.live.clear()


AllocatorMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
test_any_program = AllocatorMachine.TestCase


@pytest.mark.parametrize("size", [1 << 41, 1 << 42, 1 << 44, 1 << 47, 1 << 62])
def test_absurd_requests_are_refused(size: int) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(size, dtype=torch.uint8, device="neuron")
    with pytest.raises(torch.OutOfMemoryError):
        torch.ones(4, device="neuron").expand(size >> 4, 4).contiguous()
    assert torch.ones(3, device="neuron").sum().item() == 3
