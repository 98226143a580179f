#include "csrc/runtime/emulated/kernels/library.h"

#include <algorithm>
#include <stdexcept>

#include "csrc/runtime/emulated/kernels/parts.h"
#include "csrc/runtime/settings.h"

namespace neuron::tiles {
namespace {

struct Choice {
  const char* name;
  bool (*runs)();
  void (*install)(Library&);
};

#define NEURON_CHOICE(name, condition)                            \
  Choice {                                                        \
    #name, [] { return bool(condition); }, [](Library& library) { \
      name::install_functions(library);                           \
      name::install_transcendental(library);                      \
      name::install_rows(library);                                \
      name::install_conversions(library);                         \
    }                                                             \
  }

// Best first.
const Choice choices[] = {
#if defined(TORCH_NEURONX_X86_VECTORS)
    NEURON_CHOICE(avx512, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                              __builtin_cpu_supports("avx512vl")),
    NEURON_CHOICE(avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")),
#endif
    NEURON_CHOICE(portable, true),
};

Library make_library() {
  const auto& wanted = settings().vectors;
  for (const auto& choice : choices) {
    if ((wanted != "auto" && wanted != choice.name) || !choice.runs()) continue;
    Library library;
    library.name = choice.name;
    choice.install(library);
    return library;
  }
  std::string names;
  for (const auto& name : available_libraries()) names += (names.empty() ? "" : ", ") + name;
  throw std::runtime_error("TORCH_NEURONX_VECTORS=" + wanted + ": this processor or this build has no such vectors; it can use " + names +
                           ". Leave the variable unset for the best of them.");
}

}  // namespace

const Library& library() {
  static const Library instance = make_library();
  return instance;
}

std::vector<std::string> available_libraries() {
  std::vector<std::string> names;
  for (const auto& choice : choices) {
    if (choice.runs()) names.emplace_back(choice.name);
  }
  return names;
}

}  // namespace neuron::tiles
