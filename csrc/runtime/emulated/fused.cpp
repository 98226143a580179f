#include "csrc/runtime/emulated/fused.h"

#include <c10/core/Scalar.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>

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
constexpr int64_t kPiecesPerThread = 4;
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

// Note [Next tile]
// A loop over tiles waits for memory in the steps that read it first and leaves it idle in the others. So each step asks for a share of the
// next tile's cache lines, into L2 (L1 is full of this tile).
class NextTile {
 public:
  static constexpr int64_t kLine = 64;

  NextTile(const std::vector<int>& memories, const std::vector<TileMemory>& all, char* const* at, int64_t tile, size_t steps)
      : memories_(memories), all_(all), at_(at), tile_(tile) {
    for (int memory : memories) share_ += bytes(memory) / kLine + 1;
    share_ = (share_ + static_cast<int64_t>(steps) - 1) / static_cast<int64_t>(steps);
  }
  void start() {
    current_ = 0;
    offset_ = 0;
  }
  void ask() {
    for (int64_t left = share_; left > 0 && current_ < memories_.size();) {
      const int memory = memories_[current_];
      const int64_t size = bytes(memory), end = std::min(size, offset_ + left * kLine);
      for (const char* next = at_[memory] + size; offset_ < end; offset_ += kLine, --left) __builtin_prefetch(next + offset_, 0, 2);
      if (offset_ < size) return;
      offset_ = 0;
      ++current_;
    }
  }

 private:
  int64_t bytes(int memory) const { return tile_ * tiles::size_of(all_[memory].type); }

  const std::vector<int>& memories_;
  const std::vector<TileMemory>& all_;
  char* const* at_;
  const int64_t tile_;
  int64_t share_ = 0, offset_ = 0;  // lines for each step; where the next one is
  size_t current_ = 0;
};

}  // namespace

TileLoop::TileLoop(TileGroup group) : group_(std::move(group)), library_(tiles::library()) {
  numbers_.resize(group_.numbers.size() + 4);  // a formula may read one more than its operation has
  bases_.resize(group_.memories.size());
  for (uint8_t size : group_.scratch) {
    scratch_offsets_.push_back(scratch_bytes_);
    scratch_bytes_ += (group_.tile * size + kAlignment - 1) / kAlignment * kAlignment;
  }
  for (const auto& step : group_.steps) {
    Step made{step.what, 0, step.out, {step.in[0], step.in[1], step.in[2]}, function_of(library_, step), &numbers_[step.numbers]};
    if (step.what == TileStep::What::gather || step.what == TileStep::What::scatter)
      made.size = static_cast<uint8_t>(tiles::size_of(step.type));
    else if (made.function == nullptr)
      throw std::logic_error(std::string("no tile function for step ") + tiles::name_of(step.op));
    steps_.push_back(made);
  }
  if (steps_.size() < 2) return;  // the processor sees a single step coming
  for (int memory = 0; memory < group_.first_scratch(); ++memory) {
    const bool used = std::any_of(group_.steps.begin(), group_.steps.end(), [&](const TileStep& step) {
      return step.out == memory || std::find(step.in, step.in + 3, memory) != step.in + 3;
    });
    if (used && group_.memories[memory].contiguous()) fetched_.push_back(memory);
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

void TileLoop::run_tiles(int64_t first, int64_t last) const {
  const int memories = group_.first_scratch();
  const size_t tiles = memories + group_.scratch.size();
  char** at = static_cast<char**>(__builtin_alloca(tiles * sizeof(char*)));
  char* scratch = thread_scratch(scratch_bytes_);
  for (size_t i = 0; i < group_.scratch.size(); ++i) at[memories + i] = scratch + scratch_offsets_[i];
  for (int i = 0; i < memories; ++i) at[i] = bases_[i] + first * tiles::size_of(group_.memories[i].type);
  if (!group_.constants.empty()) fill_constants(at, std::min(group_.tile, last - first));
  NextTile next(fetched_, group_.memories, at, group_.tile, std::max<size_t>(1, steps_.size()));
  for (int64_t begin = first; begin < last; begin += group_.tile) {
    const int64_t count = std::min(group_.tile, last - begin);
    next.start();
    const bool more = !fetched_.empty() && begin + count < last;
    for (const Step& step : steps_) {
      if (more) next.ask();
      if (step.function != nullptr) {
        TileArgs args{at[step.out], {nullptr, nullptr, nullptr}, count, step.numbers};
        for (int k = 0; k < 3; ++k) args.in[k] = step.in[k] < 0 ? nullptr : at[step.in[k]];
        step.function(args);
      } else if (step.what == TileStep::What::gather) {
        each_run(group_.memories[step.in[0]], bases_[step.in[0]], begin, count, [&](char* from, int64_t stride, int64_t done, int64_t run) {
          library_.gather(at[step.out] + done * step.size, from, stride, run, step.size);
        });
      } else {
        each_run(group_.memories[step.out], bases_[step.out], begin, count, [&](char* to, int64_t stride, int64_t done, int64_t run) {
          library_.scatter(to, at[step.in[0]] + done * step.size, stride, run, step.size);
        });
      }
    }
    for (int i = 0; i < memories; ++i) at[i] += count * tiles::size_of(group_.memories[i].type);
  }
}

void TileLoop::run(const uint64_t* words, int threads) {
  bind(words);
  if (threads <= 1) return run_tiles(0, group_.elements);
  const int64_t wanted = std::max(group_.elements / (threads * kPiecesPerThread), kPiece);
  const int64_t piece = (wanted + kWholeTiles - 1) / kWholeTiles * kWholeTiles;
  parallel_pieces(group_.elements, piece, threads, [this](int64_t first, int64_t last) { run_tiles(first, last); });
}

namespace {

constexpr int64_t kSerialWork = 32768;  // steps times elements for one thread; eager has the same bound for one step

bool is_small(const TileGroup& group) {
  return group.elements * std::max<int64_t>(1, static_cast<int64_t>(group.steps.size()) / 4) < kSerialWork;
}

}  // namespace

bool TileLoop::small() const { return is_small(group_); }

FusedExecutable::FusedExecutable(std::vector<TileGroup> groups, std::string name, bool serial) : name_(std::move(name)) {
  this->serial = serial;
  repeats_first_run = true;
  loops_.reserve(groups.size());
  for (auto& group : groups) loops_.emplace_back(std::move(group));
}

void FusedExecutable::run(const uint64_t* words) {
  counters().tile_launches.fetch_add(1, std::memory_order_relaxed);
  for (auto& loop : loops_) loop.run(words, serial || loop.small() ? 1 : compute_threads());
}

GroupStep::GroupStep(SequenceGroup made, int storages) {
  calls = std::move(made.calls);
  internal = std::move(made.internal);
  auto& group = *made.group;
  serial = is_small(group);
  name_ = "fused group of " + std::to_string(calls.size()) + " calls";
  // The words that the group really reads, in a row.
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
  for (auto& memory : group.memories) local(memory.address);
  for (auto& number : group.numbers) local(number.word);
  words_.resize(sources_.size());
  loop_.emplace(std::move(group));
  scratch_bytes = static_cast<size_t>(loop_->scratch_bytes());
}

void GroupStep::run(const SequenceLaunch& launch) {
  for (size_t i = 0; i < sources_.size(); ++i)
    words_[i] = sources_[i].scalar ? launch.scalars[sources_[i].index] : launch.bases[sources_[i].index];
  loop_->run(words_.data(), serial ? 1 : compute_threads());
}

}  // namespace neuron
