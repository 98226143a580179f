#include "csrc/runtime/emulated/fused.h"

#include <c10/core/Scalar.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <utility>

#include "csrc/program/explain.h"
#include "csrc/runtime/emulated/parallel.h"
#include "csrc/runtime/emulated/stream.h"
#include "csrc/runtime/memory.h"

namespace neuron {
namespace {

using tiles::Kind;
using tiles::Number;
using tiles::TileArgs;
using tiles::TileFunction;
using tiles::Type;

constexpr int64_t kAlignment = 64;
constexpr int64_t kPiece = 8192;  // elements that a thread takes at least, so that it is worth its while
constexpr int64_t kPiecesPerThread = 16;
constexpr int64_t kWholeTiles = 2048;  // pieces are multiples of this, so that few tiles are cut

// Memory for the tiles of this thread, kept for the next launch. At exit the main thread runs records after its thread-locals are gone:
// hence plain pointers beside the object that frees, and memory that is then not freed any more.
thread_local char* scratch_memory = nullptr;
thread_local int64_t scratch_size = 0;
struct FreeScratch {
  bool armed = false;
  ~FreeScratch() {
    std::free(scratch_memory);
    scratch_memory = nullptr;
    scratch_size = 0;
  }
};
thread_local FreeScratch free_scratch;

char* thread_scratch(int64_t bytes) {
  if (bytes > scratch_size) {
    free_scratch.armed = true;  // makes the thread construct it
    std::free(scratch_memory);
    scratch_size = 0;
    const int64_t size = (bytes + 4095) / 4096 * 4096;
    scratch_memory = static_cast<char*>(std::aligned_alloc(4096, size));
    if (scratch_memory == nullptr) throw std::bad_alloc();
    scratch_size = size;
  }
  return scratch_memory;
}

TileFunction function_of(const tiles::Library& library, const TileStep& step) {
  const int kind = static_cast<int>(step.kind), type = static_cast<int>(step.type);
  switch (step.what) {
    case TileStep::What::op:
      return library.ops[static_cast<int>(step.op)][kind];
    case TileStep::What::widen:
      return library.widen[type][kind];
    case TileStep::What::narrow:
      return library.narrow[kind][type];
    case TileStep::What::round:
      return library.round[type];
    default:
      return nullptr;
  }
}

/// Copies flat elements [first, first + count) of a strided memory to a packed row (or back), run by run.
template <class Row>
void each_run(const TileMemory& memory, char* base, int64_t first, int64_t count, Row row) {
  const int dims = static_cast<int>(memory.sizes.size());
  int64_t index[16];
  char* at = base;
  for (int d = dims - 1; d >= 0; --d) {
    index[d] = first % memory.sizes[d];
    first /= memory.sizes[d];
    at += index[d] * memory.strides[d];
  }
  const int64_t inner = memory.sizes[dims - 1], stride = memory.strides[dims - 1];
  int64_t done = 0;
  while (done < count) {
    const int64_t run = std::min(inner - index[dims - 1], count - done);
    row(at, stride, done, run);
    done += run;
    index[dims - 1] += run;
    at += run * stride;
    for (int d = dims - 1; d > 0 && index[d] == memory.sizes[d]; --d) {
      index[d] = 0;
      at += memory.strides[d - 1] - memory.sizes[d] * memory.strides[d];
      ++index[d - 1];
    }
  }
}

double real_of(const TileNumber& number, const uint64_t* word) {
  double value;
  switch (number.from) {
    case TileNumber::From::integer:
      return static_cast<double>(static_cast<int64_t>(*word));
    case TileNumber::From::boolean:
      return *word != 0;
    default:
      std::memcpy(&value, word, sizeof value);
      return value;
  }
}

int64_t integer_of(const TileNumber& number, const uint64_t* word) {
  if (number.from == TileNumber::From::real) return static_cast<int64_t>(real_of(number, word));
  return number.from == TileNumber::From::boolean ? *word != 0 : static_cast<int64_t>(*word);
}

/// As c10::Scalar::to() does: throws when the type cannot hold the number.
void check_fits(const TileConstant& constant, bool integer, const Number& number) {
  const auto scalar = integer ? c10::Scalar(number.integer) : c10::Scalar(number.real);
  switch (constant.type) {
    case Type::f32:
      return void(scalar.to<float>());
    case Type::bf16:
      return void(scalar.to<at::BFloat16>());
    case Type::f16:
      return void(scalar.to<at::Half>());
    case Type::i32:
      return void(scalar.to<int32_t>());
    case Type::i16:
      return void(scalar.to<int16_t>());
    case Type::i8:
      return void(scalar.to<int8_t>());
    case Type::u8:
      return void(scalar.to<uint8_t>());
    default:
      return;
  }
}

// Note [Later tiles]
// A loop over tiles waits for memory in the steps that read it first and leaves it idle in the others. So each step asks for a share of the
// cache lines of the tile after the next, into L2: asked for one tile ahead they would come late.
constexpr int64_t kLine = 64;
constexpr int64_t kTilesAhead = 2;

}  // namespace

TileLoop::TileLoop(TileGroup group) : group_(std::move(group)), library_(tiles::library()) {
  numbers_.resize(group_.numbers.size() + 4);  // a formula may read one more than its operation has
  bases_.resize(group_.memories.size());
  for (const auto& scratch : group_.scratch) {
    scratch_offsets_.push_back(scratch_bytes_);
    scratch_bytes_ += (count_of(scratch.span, group_.tile) * scratch.size + kAlignment - 1) / kAlignment * kAlignment;
  }
  for (const auto& step : group_.steps) {
    Step made{step.what, 0,       step.out, {step.in[0], step.in[1], step.in[2]}, function_of(library_, step), &numbers_[step.numbers],
              0,         nullptr, step.span};
    if (step.what == TileStep::What::op) made.round = library_.round[static_cast<int>(step.type)];
    if (step.what == TileStep::What::gather || step.what == TileStep::What::scatter)
      made.size = static_cast<uint8_t>(tiles::size_of(step.type));
    else if (made.function == nullptr)
      throw std::logic_error(std::string("no tile function for step ") + tiles::name_of(step.op));
    (step.span == tiles::Span::row ? before_ : steps_).push_back(made);
  }
  for (int memory = 0; memory < group_.first_scratch(); ++memory) {
    const bool used = std::any_of(group_.steps.begin(), group_.steps.end(), [&](const TileStep& step) {
      return step.out == memory || std::find(step.in, step.in + 3, memory) != step.in + 3;
    });
    const auto& one = group_.memories[memory];
    if (used && one.span == tiles::Span::elements && one.contiguous()) in_place_.push_back(memory);
  }
  for (int i = 0; i < static_cast<int>(steps_.size()); ++i) {
    auto note = [&](int operand, int tile) {
      if (tile < 0 || tile >= group_.first_scratch()) return;
      const auto& memory = group_.memories[tile];
      if (memory.span != tiles::Span::row) moving_.push_back({i, operand, tiles::size_of(memory.type), memory.span});
    };
    note(-1, steps_[i].out);
    for (int k = 0; k < 3; ++k) note(k, steps_[i].in[k]);
  }
  if (steps_.size() > 1) plan_fetches();  // the processor sees a single step coming
}

/// Deals the lines out to the steps in equal shares.
void TileLoop::plan_fetches() {
  int64_t total = 0;
  auto lines_of = [&](int memory) { return (group_.tile * tiles::size_of(group_.memories[memory].type) + kLine - 1) / kLine; };
  for (int memory : in_place_) total += lines_of(memory);
  const int64_t steps = static_cast<int64_t>(steps_.size()), share = (total + steps - 1) / steps;
  auto memory = in_place_.begin();
  int64_t line = 0;
  for (auto& step : steps_) {
    for (int64_t left = share; left > 0 && memory != in_place_.end();) {
      const int64_t lines = std::min(left, lines_of(*memory) - line);
      const int64_t ahead = kTilesAhead * group_.tile * tiles::size_of(group_.memories[*memory].type);
      fetches_.push_back({*memory, static_cast<int>(ahead + line * kLine), static_cast<int>(lines)});
      left -= lines;
      line += lines;
      if (line < lines_of(*memory)) break;
      line = 0;
      ++memory;
    }
    step.fetches_end = static_cast<int>(fetches_.size());
  }
}

void TileLoop::bind(const uint64_t* words) {
  auto word_of = [&](const WordRef& ref) { return ref.index < 0 ? static_cast<uint64_t>(ref.offset) : words[ref.index]; };
  for (size_t i = 0; i < bases_.size(); ++i) {
    const auto& address = group_.memories[i].address;
    bases_[i] = static_cast<char*>(host_address(reinterpret_cast<char*>(words[address.index]) + address.offset));
  }
  for (size_t i = 0; i < group_.numbers.size(); ++i) {
    const auto& number = group_.numbers[i];
    const uint64_t word = word_of(number.word);
    if (number.from == TileNumber::From::memory) {
      // A 0-dim tensor's bytes: through the same conversion as a tile.
      const Kind kind = number.integer ? Kind::i64 : Kind::f64;
      library_.widen[static_cast<int>(number.type)][static_cast<int>(kind)]({&numbers_[i], {&word, nullptr, nullptr}, 1, nullptr});
    } else if (number.integer) {
      numbers_[i].integer = integer_of(number, &word);
    } else {
      numbers_[i].real = real_of(number, &word);
      if (number.rounded != Type::f64) {
        constexpr int real = static_cast<int>(Kind::f64);
        const int type = static_cast<int>(number.rounded);
        alignas(8) char narrow[8];
        library_.narrow[real][type]({narrow, {&numbers_[i], nullptr, nullptr}, 1, nullptr});
        library_.widen[type][real]({&numbers_[i], {narrow, nullptr, nullptr}, 1, nullptr});
      }
    }
  }
  for (const auto& constant : group_.constants) {
    if (constant.checked) check_fits(constant, group_.numbers[constant.number].integer, numbers_[constant.number]);
  }
}

void TileLoop::fill_constants(char* const* at, int64_t count) const {
  for (const auto& constant : group_.constants) {
    const Number& number = numbers_[constant.number];
    const bool integer = group_.numbers[constant.number].integer;
    const Kind from = integer ? Kind::i64 : Kind::f64;
    alignas(8) char typed[8], value[8];
    const int kind = static_cast<int>(constant.kind), type = static_cast<int>(constant.type);
    if (constant.rounded) {
      library_.narrow[static_cast<int>(from)][type]({typed, {&number, nullptr, nullptr}, 1, nullptr});
      library_.widen[type][kind]({value, {typed, nullptr, nullptr}, 1, nullptr});
    } else {
      const Type native = integer ? Type::i64 : Type::f64;
      library_.widen[static_cast<int>(native)][kind]({value, {&number, nullptr, nullptr}, 1, nullptr});
    }
    library_.gather(at[constant.tile], value, 0, count, tiles::size_of(constant.kind));
  }
}

/// A step between a memory whose rows are apart and a packed tile.
void TileLoop::move_rows(const Step& step, char* const* at, int64_t begin, int64_t count) const {
  if (step.what == TileStep::What::gather) {
    each_run(group_.memories[step.in[0]], bases_[step.in[0]], begin, count, [&](char* from, int64_t stride, int64_t done, int64_t run) {
      library_.gather(at[step.out] + done * step.size, from, stride, run, step.size);
    });
  } else {
    each_run(group_.memories[step.out], bases_[step.out], begin, count, [&](char* to, int64_t stride, int64_t done, int64_t run) {
      library_.scatter(to, at[step.in[0]] + done * step.size, stride, run, step.size);
    });
  }
}

void TileLoop::run_before(char* const* at) const {
  for (const Step& step : before_) {
    const void* in = step.in[0] < 0 ? nullptr : at[step.in[0]];
    step.function({at[step.out], {in, nullptr, nullptr}, group_.row, step.numbers});
  }
}

void TileLoop::run_tiles(int64_t first, int64_t last) const {
  const int memories = group_.first_scratch();
  const size_t tiles = memories + group_.scratch.size();
  char** at = static_cast<char**>(__builtin_alloca(tiles * sizeof(char*)));
  char* scratch = thread_scratch(scratch_bytes_);
  for (size_t i = 0; i < group_.scratch.size(); ++i) at[memories + i] = scratch + scratch_offsets_[i];
  for (int i = 0; i < memories; ++i) {
    const auto& memory = group_.memories[i];
    at[i] = bases_[i] + (memory.span == tiles::Span::row ? 0 : count_of(memory.span, first)) * tiles::size_of(memory.type);
  }
  int64_t count = std::min(group_.tile, last - first);
  if (!group_.constants.empty()) fill_constants(at, count);
  run_before(at);
  // Tiles are short, so the arguments of their functions are made once, and moved on from tile to tile.
  auto* args = static_cast<TileArgs*>(__builtin_alloca(steps_.size() * sizeof(TileArgs)));
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    args[i] = {at[step.out], {nullptr, nullptr, nullptr}, count_of(step.span, count), step.numbers, group_.row, step.round};
    for (int k = 0; k < 3; ++k) args[i].in[k] = step.in[k] < 0 ? nullptr : at[step.in[k]];
  }
  for (int64_t begin = first; begin < last; begin += count) {
    const bool more = begin + count < last;
    if (last - begin < count) {
      count = last - begin;
      for (size_t i = 0; i < steps_.size(); ++i) args[i].count = count_of(steps_[i].span, count);
    }
    const Fetch* fetch = fetches_.data();
    for (size_t i = 0; i < steps_.size(); ++i) {
      const Step& step = steps_[i];
      for (const Fetch* end = fetches_.data() + step.fetches_end; more && fetch < end; ++fetch) {
        const char* line = at[fetch->memory] + fetch->offset;
        for (int k = 0; k < fetch->lines; ++k) __builtin_prefetch(line + k * kLine, 0, 2);
      }
      if (step.function != nullptr)
        step.function(args[i]);
      else
        move_rows(step, at, begin, count);
    }
    for (int i : in_place_) at[i] += count * tiles::size_of(group_.memories[i].type);
    for (const Moving& moving : moving_) {
      auto& place = moving.operand < 0 ? args[moving.step].out : const_cast<void*&>(args[moving.step].in[moving.operand]);
      place = static_cast<char*>(place) + count_of(moving.span, count) * moving.size;
    }
  }
}

// ---- Several loops ----

namespace {

constexpr int64_t kSerialWork = 32768;  // steps times elements for one thread; eager has the same bound for one step

constexpr int64_t kRowWork = 16;  // steps' worth of a row function

int64_t work_of(const TileGroup& group) {
  int64_t steps = 0;
  for (const auto& step : group.steps) steps += step.what == TileStep::What::op && tiles::is_row(step.op) ? kRowWork : 1;
  return group.elements * std::max<int64_t>(1, steps / 4);
}

bool are_small(const std::vector<TileGroup>& groups) {
  int64_t work = 0;
  for (const auto& group : groups) work += work_of(group);
  return work < kSerialWork;
}

/// Calls visit(word, written) for each memory that a step uses.
template <class Visit>
void each_memory(const TileGroup& group, Visit visit) {
  auto used = [&](int tile, bool written) {
    if (tile >= 0 && tile < group.first_scratch()) visit(group.memories[tile].address.index, written);
  };
  for (const auto& step : group.steps) {
    used(step.out, true);
    for (int tile : step.in) used(tile, false);
  }
}

bool contains(const std::vector<int>& words, int word) { return std::find(words.begin(), words.end(), word) != words.end(); }

}  // namespace

bool TouchedMemory::meets(const TileGroup& group) const {
  bool meets = false;
  each_memory(group, [&](int word, bool written) { meets = meets || contains(written ? touched_ : written_, word); });
  return meets;
}

void TouchedMemory::add(const TileGroup& group) {
  each_memory(group, [&](int word, bool written) {
    if (!contains(touched_, word)) touched_.push_back(word);
    if (written && !contains(written_, word)) written_.push_back(word);
  });
}

TileLoops::TileLoops(std::vector<TileGroup> groups) : bound_(groups.size()), small_(are_small(groups)) {
  loops_.reserve(groups.size());
  for (auto& group : groups) loops_.emplace_back(std::move(group));
}

int64_t TileLoops::scratch_bytes() const {
  int64_t most = 0;
  for (const auto& loop : loops_) most = std::max(most, loop.scratch_bytes());
  return most;
}

/// Small enough for the threads to end together, though one may have been kept from its core for a while.
void TileLoops::divide(int threads) {
  int64_t elements = 0;
  for (const auto& loop : loops_) elements += loop.elements();
  const int64_t wanted = std::max(elements / (threads * kPiecesPerThread), kPiece);
  const int64_t piece = (wanted + kWholeTiles - 1) / kWholeTiles * kWholeTiles;
  pieces_.clear();
  for (int i = 0; i < static_cast<int>(loops_.size()); ++i) {
    const int64_t row = std::max<int64_t>(1, loops_[i].row()), whole = (piece + row - 1) / row * row;
    for (int64_t first = 0; first < loops_[i].elements(); first += whole)
      pieces_.push_back({i, first, std::min(first + whole, loops_[i].elements())});
  }
  pieces_for_ = threads;
}

void TileLoops::run(const uint64_t* words, int threads) {
  std::exception_ptr error;
  for (size_t i = 0; i < loops_.size(); ++i) {
    try {
      loops_[i].bind(words);
      bound_[i] = true;
    } catch (...) {
      bound_[i] = false;
      if (!error) error = std::current_exception();
    }
  }
  if (threads <= 1 || small_) {
    for (size_t i = 0; i < loops_.size(); ++i) {
      if (bound_[i]) loops_[i].run_tiles(0, loops_[i].elements());
    }
  } else {
    if (pieces_for_ != threads) divide(threads);
    parallel_pieces(static_cast<int64_t>(pieces_.size()), 1, threads, [this](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const Piece& piece = pieces_[i];
        if (bound_[piece.loop]) loops_[piece.loop].run_tiles(piece.first, piece.last);
      }
    });
  }
  if (error) std::rethrow_exception(error);
}

FusedExecutable::FusedExecutable(std::vector<TileGroup> groups, std::string name, bool serial) : name_(std::move(name)) {
  this->serial = serial;
  repeats_first_run = true;
  std::vector<TileGroup> together;
  TouchedMemory touched;
  auto close = [&] {
    if (!together.empty()) loops_.emplace_back(std::exchange(together, {}));
    touched = {};
  };
  for (auto& group : groups) {
    if (touched.meets(group)) close();
    touched.add(group);
    together.push_back(std::move(group));
  }
  close();
}

/// An error does not keep the later ones from running: the first one is raised at the end.
void FusedExecutable::run(const uint64_t* words) {
  counters().tile_launches.fetch_add(1, std::memory_order_relaxed);
  std::exception_ptr error;
  for (auto& loops : loops_) {
    try {
      loops.run(words, serial ? 1 : compute_threads());
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

GroupStep::GroupStep(std::vector<SequenceGroup> made, int storages) {
  std::vector<TileGroup> groups;
  for (auto& one : made) {
    calls.insert(calls.end(), one.calls.begin(), one.calls.end());
    internal.insert(internal.end(), one.internal.begin(), one.internal.end());
    groups.push_back(std::move(*one.group));
  }
  std::sort(calls.begin(), calls.end());
  calls.erase(std::unique(calls.begin(), calls.end()), calls.end());
  serial = are_small(groups);
  this->groups = static_cast<int>(groups.size());
  name_ = (groups.size() > 1 ? std::to_string(groups.size()) + " fused groups of " : "fused group of ") + std::to_string(calls.size()) +
          " calls";
  // The words that the groups really read, in a row.
  auto local = [&](WordRef& ref) {
    if (ref.index < 0) return;
    const bool scalar = ref.index >= storages;
    const Word word{scalar, scalar ? ref.index - storages : ref.index};
    for (size_t i = 0; i < sources_.size(); ++i) {
      if (sources_[i].scalar == word.scalar && sources_[i].index == word.index) {
        ref.index = static_cast<int>(i);
        return;
      }
    }
    ref.index = static_cast<int>(sources_.size());
    sources_.push_back(word);
  };
  for (auto& group : groups) {
    for (auto& memory : group.memories) local(memory.address);
    for (auto& number : group.numbers) local(number.word);
  }
  words_.resize(sources_.size());
  loops_.emplace(std::move(groups));
  scratch_bytes = static_cast<size_t>(loops_->scratch_bytes());
}

void GroupStep::run(const SequenceLaunch& launch) {
  for (size_t i = 0; i < sources_.size(); ++i)
    words_[i] = sources_[i].scalar ? launch.scalars[sources_[i].index] : launch.bases[sources_[i].index];
  loops_->run(words_.data(), serial ? 1 : compute_threads());
}

}  // namespace neuron
