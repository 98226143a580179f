// Precompiled header of libtorch_neuronx.so: what nearly every file that speaks to PyTorch includes.
//
// It is only a saving of time: each file still includes what it uses, so that it can be read, and compiled, on its own.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Storage.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>
