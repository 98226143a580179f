#include "csrc/program/fusion.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace neuron {
namespace {

using tiles::Kind;
using tiles::Op;
using tiles::Span;
using tiles::Type;
using What = TileStep::What;

// Note [Size of a tile]
// Short tiles let the processor work at several steps at a time, and at what memory still has to deliver: AdamW's eleven steps take 16.2 ms
// for 10 M elements in tiles of 576, 12.9 in tiles of 192. Shorter ones cost more calls than that gains. Rows that lie apart cost per tile.
constexpr int64_t kTileBytes = 12 * 1024, kTileBytesOfRows = 32 * 1024;  // what the tiles of a group may take together
constexpr int64_t kLargestTile = 2048, kSmallestTile = 192, kSmallestTileOfRows = 512;
constexpr int64_t kLongestRow = 64 * 1024;  // of a group: the tiles of a few steps still share L2

int64_t bits_of(double value) {
  int64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

}  // namespace

// ---- GroupBuilder ----

struct GroupBuilder::State {
  /// What a place in memory holds at this point of the loop, as a tile of its type's own kind.
  struct Value {
    TilePlace place;
    TileLayout layout;
    Type type;
    int tile;
    Span span = Span::elements;
  };
  struct Memory {
    TilePlace place;
    TileLayout layout;
    Type type;
    bool written = false;
    Span span = Span::elements;

    bool is(const TilePlace& p, const TileLayout& l, Type t, Span s) const {
      return place.storage == p.storage && place.byte_offset == p.byte_offset && type == t && layout == l && span == s;
    }
    bool overlaps(const TilePlace& p, const TileLayout& l, Type t) const {
      return place.storage == p.storage && p.byte_offset < place.byte_offset + extent(layout, tiles::size_of(type)) &&
             place.byte_offset < p.byte_offset + extent(l, tiles::size_of(t));
    }
  };

  // Tiles below kScratch are memories; scratch tiles get their final numbers in finish().
  static constexpr int kScratch = 1 << 20;

  TileGroup group;
  std::vector<Memory> memories;  // as group.memories
  std::vector<Value> values;
  std::vector<TileScratch> scratches;
  int64_t elements = -1;

  bool add(const TileCall& call);
  TileGroup finish(std::vector<int>* internal);

 private:
  int scratch(int size, Span span = Span::elements);
  int step(What what, Kind kind, Type type, int out, int in, Span span = Span::elements);
  int memory(const TilePlace& place, const TileLayout& layout, Type type, Span span = Span::elements);
  bool joins_rows(const TilePlan& plan) const;
  bool refuses(const TileCall& call, const TilePlan& plan) const;
  bool conflicts(const Memory& access) const;
  int constant(const TileNumber& number, const TilePlan& plan, bool rounded, bool checked);
  int load(const TilePlace& place, const TileLayout& layout, Type type, Span span = Span::elements);
  int converted(int tile, Type from, Type to, bool rounded);
  void store(const Memory& to, int tile, Kind kind);
  void normalize(const TileCall& call, const TilePlan& plan, TileStep made);
  void put_result(TileStep made, Type made_type, const Memory& result);
  void keep_inside(std::vector<int>& internal);
  void read_constants();
  void drop_unused();
  void write_where_it_goes();
  void place_scratch();
};

int GroupBuilder::State::scratch(int size, Span span) {
  scratches.push_back({static_cast<uint8_t>(size), span});
  return kScratch + static_cast<int>(scratches.size()) - 1;
}

int GroupBuilder::State::step(What what, Kind kind, Type type, int out, int in, Span span) {
  TileStep made;
  made.what = what;
  made.kind = kind;
  made.type = type;
  made.out = out;
  made.in[0] = in;
  made.span = span;
  group.steps.push_back(made);
  return out;
}

int GroupBuilder::State::memory(const TilePlace& place, const TileLayout& layout, Type type, Span span) {
  for (size_t i = 0; i < memories.size(); ++i) {
    if (memories[i].is(place, layout, type, span)) return static_cast<int>(i);
  }
  memories.push_back({place, layout, type, false, span});
  group.memories.push_back({place.address, type, span, layout.sizes, layout.strides});
  return static_cast<int>(memories.size()) - 1;
}

/// Whether a loop over tiles would mix up this access with another one of the group: same memory, not the same elements at the same time.
bool GroupBuilder::State::conflicts(const Memory& access) const {
  return std::any_of(memories.begin(), memories.end(), [&](const Memory& m) {
    return (access.written || m.written) && !m.is(access.place, access.layout, access.type, access.span) &&
           m.overlaps(access.place, access.layout, access.type);
  });
}

/// The tile (of the type's own kind) of what lies at `place` now.
int GroupBuilder::State::load(const TilePlace& place, const TileLayout& layout, Type type, Span span) {
  for (const auto& value : values) {
    if (value.place.storage == place.storage && value.place.byte_offset == place.byte_offset && value.type == type &&
        value.layout == layout && value.span == span)
      return value.tile;
  }
  int tile = memory(place, layout, type, span);
  if (!layout.contiguous(tiles::size_of(type))) tile = step(What::gather, tiles::kind_of(type), type, scratch(tiles::size_of(type)), tile);
  if (!tiles::is_native(type)) {
    const Kind kind = tiles::kind_of(type);
    tile = step(What::widen, kind, type, scratch(tiles::size_of(kind), span), tile, span);
  }
  values.push_back({place, layout, type, tile, span});
  return tile;
}

/// A tile of type `from` as one of type `to`; not rounded to it unless asked.
int GroupBuilder::State::converted(int tile, Type from, Type to, bool rounded) {
  constexpr Type native[] = {Type::f32, Type::f64, Type::i64, Type::b8};
  const Kind have = tiles::kind_of(from), want = tiles::kind_of(to);
  if (have != want) tile = step(What::widen, want, native[static_cast<int>(have)], scratch(tiles::size_of(want)), tile);
  // Bools and what is of the type already need no rounding.
  if (rounded && !tiles::is_native(to) && from != to && from != Type::b8)
    tile = step(What::round, want, to, scratch(tiles::size_of(want)), tile);
  return tile;
}

/// Writes a tile of `kind` to memory.
void GroupBuilder::State::store(const Memory& to, int tile, Kind kind) {
  const int at = memory(to.place, to.layout, to.type, to.span);
  if (to.layout.contiguous(tiles::size_of(to.type))) {
    step(What::narrow, kind, to.type, at, tile, to.span);
    return;
  }
  const int packed = step(What::narrow, kind, to.type, scratch(tiles::size_of(to.type)), tile);
  step(What::scatter, kind, to.type, at, packed);
}

namespace {

TileNumber number_of(const TileCall& call, const TileArgument& argument, bool integer) {
  TileNumber number;
  number.integer = integer;
  switch (argument.is) {
    case TileArgument::Is::host_scalar:
      number.from = TileNumber::From::memory;
      number.type = *tile_type(argument.slot->meta.dtype);
      number.word = call.words[argument.slot->word];
      break;
    case TileArgument::Is::payload:
      number.from = argument.payload->type == Payload::Type::integer   ? TileNumber::From::integer
                    : argument.payload->type == Payload::Type::boolean ? TileNumber::From::boolean
                                                                       : TileNumber::From::real;
      number.word = call.words[argument.payload->word];
      break;
    default:
      if (argument.value->isDouble()) {
        number.from = TileNumber::From::real;
        number.word.offset = bits_of(argument.value->toDouble());
      } else {
        number.from = TileNumber::From::integer;
        number.word.offset = argument.value->isBool() ? argument.value->toBool() : argument.value->toInt();
      }
  }
  return number;
}

int64_t numel_of(const TensorMeta& meta) { return std::accumulate(meta.sizes.begin(), meta.sizes.end(), int64_t{1}, std::multiplies<>()); }

/// Of a result that has one value for each row.
TileLayout row_values(const TilePlan& plan) {
  int64_t elements = 1;
  for (int64_t size : plan.result.sizes) elements *= size;
  return {{elements / plan.row}, {tiles::size_of(plan.stored)}};
}

bool is_real(Type type) { return tiles::kind_of(type) == Kind::f32 || type == Type::f64; }

}  // namespace

/// All rows of a group are of one length, so that its tiles are whole rows for all of them.
bool GroupBuilder::State::joins_rows(const TilePlan& plan) const {
  if (std::max(group.row, plan.row) > kLongestRow) return false;
  return plan.row == 0 || group.row == 0 || plan.row == group.row;
}

/// Whether the call's accesses to memory and the group's would get mixed up.
bool GroupBuilder::State::refuses(const TileCall& call, const TilePlan& plan) const {
  std::vector<Memory> results{{call.result_place, plan.result, plan.stored, true}};
  for (const auto& more : call.more) results.push_back({more.place, row_values(plan), plan.stored, true, Span::rows});
  for (const auto& operand : plan.operands) {
    if (operand.argument.is != TileArgument::Is::tensor) continue;
    const auto& place = call.tensors[operand.argument.index];
    if (conflicts({place, operand.layout, operand.type, false, operand.span})) return true;
    for (const auto& result : results) {
      if (!result.is(place, operand.layout, operand.type, operand.span) && result.overlaps(place, operand.layout, operand.type))
        return true;
    }
  }
  return std::any_of(results.begin(), results.end(), [&](const Memory& result) { return conflicts(result); });
}

/// The tile of a number.
int GroupBuilder::State::constant(const TileNumber& number, const TilePlan& plan, bool rounded, bool checked) {
  const Kind kind = tiles::kind_of(plan.compute);
  for (const auto& known : group.constants) {
    if (group.numbers[known.number] == number && known.type == plan.compute && known.kind == kind && known.rounded == rounded &&
        known.checked == checked)
      return known.tile;
  }
  group.numbers.push_back(number);
  const int tile = scratch(tiles::size_of(kind));
  group.constants.push_back({static_cast<int>(group.numbers.size()) - 1, plan.compute, rounded, checked, kind, tile});
  return tile;
}

bool GroupBuilder::State::add(const TileCall& call) {
  auto plan = plan_tiles(call);
  if (!plan) return false;
  const int64_t numel = numel_of(call.result);
  // Everything that may refuse comes before the first change.
  if (elements >= 0 && (elements != numel || !joins_rows(*plan))) return false;
  if (refuses(call, *plan)) return false;
  elements = numel;
  group.row = std::max(group.row, plan->row);
  ++group.calls;
  if (numel == 0) return true;

  const Kind kind = tiles::kind_of(plan->compute);
  TileStep made;
  made.what = What::op;
  made.op = plan->op;
  made.kind = kind;
  made.type = plan->compute;
  int in = 0;
  const uint8_t traits = call.signature->row->traits;
  for (const auto& operand : plan->operands) {
    const auto& argument = operand.argument;
    if (argument.is == TileArgument::Is::tensor) {
      int tile = load(call.tensors[argument.index], operand.layout, operand.type, operand.span);
      // An identity stores what it loads, and storing rounds.
      if (!operand.mask) tile = converted(tile, operand.type, plan->compute, operand.rounded && plan->op != Op::identity);
      made.in[in++] = tile;
    } else if (argument.is == TileArgument::Is::none) {
      ++in;
    } else {
      const bool real = argument.slot != nullptr ? is_real(*tile_type(argument.slot->meta.dtype)) : number_dtype(argument) == at::kDouble;
      const bool checked = (traits & TileRow::checked) && argument.is == TileArgument::Is::payload;
      made.in[in++] = constant(number_of(call, argument, !real), *plan, operand.rounded, checked);
    }
  }
  if (plan->operands.empty()) {
    TileNumber number;
    number.from = TileNumber::From::integer;
    number.integer = true;
    number.word.offset = static_cast<int64_t>(call.signature->row->constant);
    made.in[in++] = constant(number, *plan, true, false);
  }
  made.numbers = static_cast<int>(group.numbers.size());
  for (const auto& number : plan->numbers) {
    group.numbers.push_back(number_of(call, number, kind == Kind::i64));
    if ((traits & TileRow::narrow_numbers) && is_real(plan->compute)) group.numbers.back().rounded = plan->compute;
  }
  if (plan->op == Op::normalize)
    normalize(call, *plan, made);
  else
    put_result(made, plan->made, {call.result_place, plan->result, plan->stored});
  return true;
}

/// A norm: the moments of each row stay in a tile, and go to memory where somebody wants them.
void GroupBuilder::State::normalize(const TileCall& call, const TilePlan& plan, TileStep made) {
  const int size = tiles::size_of(made.kind), weight = made.in[1], bias = made.in[2];
  auto add_step = [&](Op op, int out) {
    made.op = op;
    made.out = out;
    group.steps.push_back(made);
    return out;
  };
  made.in[1] = made.in[2] = -1;
  const int moments = add_step(Op::moments, scratch(size, Span::pairs));
  TileStep of_row = made;
  of_row.in[0] = moments;
  of_row.span = Span::rows;
  for (size_t i = 0; i < call.more.size(); ++i) {
    of_row.op = i == 0 ? Op::mean_of : Op::rstd_of;
    put_result(of_row, plan.made, {call.more[i].place, row_values(plan), plan.stored, false, Span::rows});
  }
  made.in[1] = moments;
  if (weight >= 0) {
    made.in[0] = add_step(Op::normalize, scratch(size));
    made.in[1] = weight;
  }
  made.in[2] = bias;
  made.op = weight >= 0 ? Op::affine : Op::normalize;
  put_result(made, plan.made, {call.result_place, plan.result, plan.stored});
}

/// Adds the step that makes a result of a call, and what brings it to its memory.
void GroupBuilder::State::put_result(TileStep made, Type made_type, const Memory& result) {
  const auto& [place, layout, stored, written, span] = result;
  const Kind kind = tiles::kind_of(made_type);
  values.erase(
      std::remove_if(values.begin(), values.end(),
                     [&](const Value& v) { return Memory{v.place, v.layout, v.type}.overlaps(result.place, result.layout, result.type); }),
      values.end());
  int tile;
  const bool straight = stored == made_type && tiles::is_native(made_type) && layout.contiguous(tiles::size_of(stored));
  if (made.op == Op::identity) {
    tile = made.in[0];
  } else {
    made.out = tile = straight ? memory(place, layout, stored, span) : scratch(tiles::size_of(kind), span);
    group.steps.push_back(made);
  }
  if (made.op == Op::identity || !straight) {
    // Rounded to the type it was made in before it is cast to another.
    if (stored != made_type && !tiles::is_native(made_type))
      tile = step(What::round, kind, made_type, scratch(tiles::size_of(kind), span), tile, span);
    store(result, tile, kind);
  }
  const int at = memory(place, layout, stored, span);
  memories[at].written = true;
  // What later calls find: the tile itself, rounded (the step is dropped when nobody asks). A copy reads its own memory again, because its
  // source may be overwritten.
  if (straight) {
    values.push_back({place, layout, stored, at, span});
  } else if (stored == made_type) {
    const int rounded = scratch(tiles::size_of(kind), span);
    step(tiles::is_native(made_type) ? What::widen : What::round, kind, made_type, rounded, tile, span);
    values.push_back({place, layout, stored, rounded, span});
  }
}

/// A copy of a number's tile is read where the number is (a tensor of one value that a call fills, a weight of `lerp`, say).
void GroupBuilder::State::read_constants() {
  std::vector<bool> constant(scratches.size(), false);
  for (const auto& one : group.constants) constant[one.tile - kScratch] = true;
  auto& steps = group.steps;
  for (size_t i = 0; i < steps.size(); ++i) {
    const TileStep step = steps[i];
    const bool copies =
        (step.what == What::narrow || step.what == What::widen) && tiles::is_native(step.type) && tiles::kind_of(step.type) == step.kind;
    if (!copies || step.out < kScratch || step.in[0] < kScratch || !constant[step.in[0] - kScratch]) continue;
    for (size_t k = i + 1; k < steps.size(); ++k) std::replace(steps[k].in, steps[k].in + 3, step.out, step.in[0]);
  }
}

/// Steps whose scratch tile nobody reads.
void GroupBuilder::State::drop_unused() {
  std::vector<bool> used(scratches.size(), false);
  std::vector<TileStep> kept;
  for (size_t i = group.steps.size(); i-- > 0;) {
    const auto& step = group.steps[i];
    if (step.out >= kScratch && !used[step.out - kScratch]) continue;
    for (int tile : step.in) {
      if (tile >= kScratch) used[tile - kScratch] = true;
    }
    kept.push_back(step);
  }
  std::reverse(kept.begin(), kept.end());
  group.steps = std::move(kept);
}

/// A tile that is only copied to memory afterwards is made there: compiled graphs end in copies to what they update.
void GroupBuilder::State::write_where_it_goes() {
  auto& steps = group.steps;
  const int count = static_cast<int>(steps.size());
  std::vector<int> made(scratches.size(), -1);  // by which step; constants by none
  for (int i = 0; i < count; ++i) {
    if (steps[i].out >= kScratch) made[steps[i].out - kScratch] = i;
  }
  auto reads = [](const TileStep& step, int tile) { return std::find(step.in, step.in + 3, tile) != step.in + 3; };
  std::vector<bool> gone(count, false);
  for (int i = 0; i < count; ++i) {
    const int from = steps[i].in[0], to = steps[i].out;
    const bool copies = steps[i].what == What::narrow && tiles::is_native(steps[i].type) && tiles::kind_of(steps[i].type) == steps[i].kind;
    if (!copies || to >= kScratch || from < kScratch || made[from - kScratch] < 0) continue;
    const int maker = made[from - kScratch];
    bool possible = true;
    bool overwritten = false;
    for (int k = maker + 1; k < count; ++k) {
      if (k == i || gone[k]) continue;
      if (k < i && (reads(steps[k], to) || steps[k].out == to)) possible = false;
      if (overwritten && reads(steps[k], from)) possible = false;
      if (k > i && steps[k].out == to) overwritten = true;
    }
    if (!possible) continue;
    steps[maker].out = to;
    for (auto& step : steps) std::replace(step.in, step.in + 3, from, to);
    gone[i] = true;
  }
  std::vector<TileStep> kept;
  for (int i = 0; i < count; ++i) {
    if (!gone[i]) kept.push_back(steps[i]);
  }
  steps = std::move(kept);
}

/// Gives scratch tiles their places: one that is not read any more is taken again. What is made before the loop keeps its place.
void GroupBuilder::State::place_scratch() {
  const int steps = static_cast<int>(group.steps.size());
  std::vector<int> last(scratches.size(), -1), place(scratches.size(), -1);
  for (int i = 0; i < steps; ++i) {
    for (int tile : group.steps[i].in) {
      if (tile >= kScratch) last[tile - kScratch] = i;
    }
  }
  const int first = group.first_scratch();
  auto take = [&](const TileScratch& wanted) {
    group.scratch.push_back(wanted);
    return first + static_cast<int>(group.scratch.size()) - 1;
  };
  for (auto& constant : group.constants) {
    const int tile = constant.tile - kScratch;
    constant.tile = place[tile] = take(scratches[tile]);
    last[tile] = steps;
  }
  std::vector<int> free[tiles::kSpans][9];
  auto free_like = [&](int tile) -> std::vector<int>& { return free[static_cast<int>(scratches[tile].span)][scratches[tile].size]; };
  for (int i = 0; i < steps; ++i) {
    auto& step = group.steps[i];
    for (int& tile : step.in) {
      if (tile < kScratch) continue;
      const int scratch = tile - kScratch;
      tile = place[scratch];
      if (last[scratch] != i || scratches[scratch].span == Span::row) continue;
      last[scratch] = steps;  // once
      free_like(scratch).push_back(tile);
    }
    if (step.out < kScratch) continue;
    const int scratch = step.out - kScratch;
    auto& available = free_like(scratch);
    if (available.empty()) {
      place[scratch] = take(scratches[scratch]);
    } else {
      place[scratch] = available.back();
      available.pop_back();
    }
    step.out = place[scratch];
  }
}

/// Turns memories of storages that nobody else reads into scratch tiles: a new one for each write, so that a scratch tile is written once
/// and whoever follows it from reader to maker finds the right one.
void GroupBuilder::State::keep_inside(std::vector<int>& internal) {
  auto is_internal = [&](int tile) {
    return tile >= 0 && tile < kScratch && std::binary_search(internal.begin(), internal.end(), memories[tile].place.storage);
  };
  // A gather reads real memory (and where its strides are the memory's own, another step has put a tile there).
  for (const auto& step : group.steps) {
    if (step.what != What::gather || !is_internal(step.in[0])) continue;
    internal.erase(std::find(internal.begin(), internal.end(), memories[step.in[0]].place.storage));
  }
  auto& steps = group.steps;
  steps.erase(
      std::remove_if(steps.begin(), steps.end(), [&](const TileStep& step) { return step.what == What::scatter && is_internal(step.out); }),
      steps.end());
  std::vector<int> tiles(memories.size(), -1);
  auto inside = [&](int& tile, bool writes) {
    if (!is_internal(tile)) return;
    if (writes || tiles[tile] < 0) tiles[tile] = scratch(tiles::size_of(memories[tile].type), memories[tile].span);
    tile = tiles[tile];
  };
  for (auto& step : steps) {
    for (int& tile : step.in) inside(tile, false);
    inside(step.out, true);
  }
}

TileGroup GroupBuilder::State::finish(std::vector<int>* internal) {
  group.elements = std::max<int64_t>(elements, 0);
  if (internal != nullptr) keep_inside(*internal);
  read_constants();
  drop_unused();
  write_where_it_goes();
  place_scratch();
  std::vector<bool> used(memories.size(), false);
  for (const auto& step : group.steps) {
    for (int tile : {step.out, step.in[0], step.in[1], step.in[2]}) {
      if (tile >= 0 && tile < group.first_scratch()) used[tile] = true;
    }
  }
  int64_t bytes = 0;
  for (const auto& scratch : group.scratch) bytes += scratch.span == Span::elements ? scratch.size : 0;
  for (size_t i = 0; i < memories.size(); ++i) {
    const auto& memory = group.memories[i];
    bytes += used[i] && memory.span == Span::elements && memory.contiguous() ? tiles::size_of(memory.type) : 0;
  }
  const bool rows = std::any_of(group.steps.begin(), group.steps.end(),
                                [](const TileStep& step) { return step.what == What::gather || step.what == What::scatter; });
  const int64_t most = (rows ? kTileBytesOfRows : kTileBytes) / std::max<int64_t>(bytes, 1) / 64 * 64;
  // A single step gains nothing from L1.
  group.tile = group.steps.size() <= 1 ? 16 * kLargestTile : std::clamp(most, rows ? kSmallestTileOfRows : kSmallestTile, kLargestTile);
  if (group.row > 0) group.tile = std::max<int64_t>(1, group.tile / group.row) * group.row;
  return std::move(group);
}

GroupBuilder::GroupBuilder() : state_(std::make_unique<State>()) {}
GroupBuilder::~GroupBuilder() = default;
bool GroupBuilder::add(const TileCall& call) { return state_->add(call); }
bool GroupBuilder::empty() const { return state_->group.calls == 0; }
TileGroup GroupBuilder::finish(std::vector<int>* internal) { return state_->finish(internal); }

}  // namespace neuron
