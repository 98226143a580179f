"""``torch.compile(backend="neuron")``.

Dynamo finds :func:`torch_neuronx.compile.backend.neuron` through the entry point ``torch_dynamo_backends``. Nothing here is imported
before ``torch._dynamo`` is, but for :mod:`torch_neuronx.compile.hook`.
"""
