"""Devices: counting, choosing, describing them."""

import threading

import pytest
import torch

import torch_neuronx

neuron = torch.neuron


@pytest.fixture(autouse=True)
def keep_device():
    before = neuron.current_device()
    yield
    neuron.set_device(before)


def test_count_and_names():
    assert neuron.is_available() and neuron._is_compiled() and not neuron._is_in_bad_fork()
    assert neuron.device_count() == 4  # trn2.3xlarge, the default instance: one chip, LNC 2
    assert "emulated" in neuron.get_device_name()
    properties = neuron.get_device_properties("neuron:1")
    assert properties.name == "trn2 (emulated)" and properties.architecture == "trn2" and properties.is_emulated
    assert properties.total_memory == 24 << 30 and properties.multi_processor_count == 2
    assert neuron.get_device_capability() == (3, 0)
    assert neuron.is_bf16_supported()


def test_the_module_is_the_package():
    assert neuron is torch_neuronx is torch.get_device_module("neuron")


@pytest.mark.parametrize(
    "name",
    """
    is_available is_initialized init _lazy_init _is_in_bad_fork _is_compiled device_count current_device
    set_device device device_of _exchange_device _maybe_exchange_device get_device_properties get_device_name
    get_device_capability synchronize Stream Event stream StreamContext current_stream default_stream
    set_stream manual_seed manual_seed_all initial_seed seed seed_all get_rng_state set_rng_state
    get_rng_state_all set_rng_state_all default_generators get_amp_supported_dtype is_bf16_supported
    memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_stats memory_summary
    empty_cache reset_peak_memory_stats reset_accumulated_memory_stats mem_get_info explain get_executed_ops
    get_fallback_ops clear_op_tracking get_dynamo_metrics reset_dynamo_metrics _initialized
    """.split(),
)
def test_public_names(name):
    assert hasattr(neuron, name)


def test_set_device_takes_what_cuda_takes():
    for device in (1, "neuron:1", torch.device("neuron", 1)):
        neuron.set_device(0)
        neuron.set_device(device)
        assert neuron.current_device() == 1
    neuron.set_device(-1)
    assert neuron.current_device() == 1
    assert torch.empty(1, device="neuron").device.index == 1


def test_device_context():
    with neuron.device(2):
        assert neuron.current_device() == 2
        with neuron.device("neuron:3"):
            assert torch.empty(1, device="neuron").device == torch.device("neuron:3")
        with neuron.device(None), neuron.device(-1):
            assert neuron.current_device() == 2
    assert neuron.current_device() == 0
    with pytest.raises(ValueError), neuron.device(1):
        raise ValueError
    assert neuron.current_device() == 0


def test_device_of():
    with neuron.device_of(torch.empty(1, device="neuron:1")):
        assert neuron.current_device() == 1
    with neuron.device_of(torch.empty(1)):
        assert neuron.current_device() == 0


def test_exchange_device():
    assert neuron._exchange_device(2) == 0
    assert neuron._maybe_exchange_device(-1) == -1
    assert neuron._maybe_exchange_device(0) == 2


def test_the_current_device_is_per_thread():
    neuron.set_device(2)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(neuron.current_device()))
    thread.start()
    thread.join()
    assert seen == [0] and neuron.current_device() == 2


def test_default_device_and_context():
    with torch.device("neuron:1"):
        assert torch.zeros(2).device == torch.device("neuron:1")
        assert torch.nn.Linear(2, 2).weight.device == torch.device("neuron:1")
    torch.set_default_device("neuron")
    try:
        assert torch.zeros(2).device.type == "neuron"
    finally:
        torch.set_default_device(None)
    assert torch.zeros(2).device.type == "cpu"


def test_generated_methods():
    x = torch.ones(2)
    assert not x.is_neuron and x.neuron().is_neuron and x.neuron(1).device.index == 1
    layer = torch.nn.Linear(2, 2)
    layer.neuron()  # type: ignore[operator]
    assert layer.weight.is_neuron
    assert x.untyped_storage().neuron().device.type == "neuron"
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)]).neuron()
    assert packed.data.is_neuron and packed.is_neuron


def test_device_from_pointer_and_type():
    x = torch.ones(2, device="neuron:1")
    assert x.type() == "torch.neuron.FloatTensor"
    assert x.data_ptr() != 0
    assert str(x.device) == "neuron:1" and repr(x.device) == "device(type='neuron', index=1)"


@pytest.mark.parametrize("optional, device, expected", [(True, None, 0), (True, "neuron", 0), (False, "neuron:3", 3), (False, 2, 2)])
def test_device_index_argument(optional, device, expected):
    assert neuron._utils._get_device_index(device, optional) == expected


def test_resize_keeps_what_was_there():
    x = torch.arange(4.0, device="neuron")
    x.untyped_storage().resize_(32)
    assert x.untyped_storage().nbytes() == 32
    assert x.cpu().tolist() == [0, 1, 2, 3]
    x.untyped_storage().resize_(8)
    assert x[:2].cpu().tolist() == [0, 1]
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0


@pytest.mark.parametrize(
    "environment, count, name",
    [
        ({"NEURON_LOGICAL_NC_CONFIG": "1"}, 8, "Trainium2 (emulated)"),
        ({"NEURON_RT_NUM_CORES": "2"}, 2, "Trainium2 (emulated)"),
        ({"NEURON_RT_VISIBLE_CORES": "1,3"}, 2, "Trainium2 (emulated)"),
        ({"TORCH_NEURONX_EMULATED_INSTANCE": "trn3"}, 4, "Trainium3 (emulated)"),
        ({"TORCH_NEURONX_EMULATED_INSTANCE": "trn2.48xlarge"}, 64, "Trainium2 (emulated)"),
    ],
)
def test_instances(run_python, environment, count, name):
    code = """
import torch
last = torch.neuron.device_count() - 1
print(last + 1, torch.ones(1, device=f"neuron:{last}").item(), torch.neuron.get_device_name(last))
"""
    run = run_python(code, **environment)
    assert run.stdout.strip() == f"{count} 1.0 {name}", run.stderr
