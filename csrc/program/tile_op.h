// The vocabulary of tile functions: what a tile holds, what lies in memory, and what can be done with a tile. Knows nothing of PyTorch.
//
// Note [Tiles]
// A tile is a few KiB of consecutive elements of one value, in L1. It holds one of four kinds of number; memory holds more types. A value
// of type bfloat16 lies in a float tile but is rounded to bfloat16 after every operation, an int32 in an int64 tile that is wrapped to 32
// bits, as PyTorch's kernels compute in the wider type and store the narrower. So a value is the same whether it went through memory or
// not, and each operation is written once for each kind, not once for each type.
#pragma once

#include <cstdint>

namespace neuron::tiles {

/// What a tile holds.
enum class Kind : uint8_t { f32, f64, i64, b8 };
inline constexpr int kKinds = 4;

/// What memory holds.
enum class Type : uint8_t { f32, f64, bf16, f16, i64, i32, i16, i8, u8, b8 };
inline constexpr int kTypes = 10;

constexpr Kind kind_of(Type type) {
  switch (type) {
    case Type::f32:
    case Type::bf16:
    case Type::f16:
      return Kind::f32;
    case Type::f64:
      return Kind::f64;
    case Type::b8:
      return Kind::b8;
    default:
      return Kind::i64;
  }
}

constexpr int size_of(Type type) {
  constexpr int sizes[] = {4, 8, 2, 2, 8, 4, 2, 1, 1, 1};
  return sizes[static_cast<int>(type)];
}
constexpr int size_of(Kind kind) { return kind == Kind::f32 ? 4 : kind == Kind::b8 ? 1 : 8; }

/// Tiles of its kind hold exactly the values of this type, so that they can lie in memory as they are.
constexpr bool is_native(Type type) { return type == Type::f32 || type == Type::f64 || type == Type::i64 || type == Type::b8; }

/// A parameter of an operation: `real` for float tiles, `integer` for int64 and bool tiles.
union Number {
  double real;
  int64_t integer;
};

// Operations. a, b, c: tiles; p0, p1...: numbers. Comparisons give b8 tiles, all others tiles of their own kind. A NaN goes through
// maximum, minimum and clamp from any operand. The second column says for which kinds there is a function: r(eals), n(umbers: reals and
// i64), b(its: i64 and b8), a(ll).
#define NEURON_TILE_OPS(_)                           \
  _(identity, a)                                     \
  _(where, a) /* a ? b : c; a is a b8 tile */        \
  /* exact: one IEEE operation, or integers */       \
  _(add, n) /* a + p0 b */                           \
  _(sub, n) /* a - p0 b */                           \
  _(mul, n)                                          \
  _(div, r)                                          \
  _(neg, n)                                          \
  _(abs, n)                                          \
  _(reciprocal, r)                                   \
  _(sqrt, r)                                         \
  _(sign, n)                                         \
  _(floor, r)                                        \
  _(ceil, r)                                         \
  _(trunc, r)                                        \
  _(round, r)                                        \
  _(maximum, n)                                      \
  _(minimum, n)                                      \
  _(clamp, n) /* a to [b, c] */                      \
  _(eq, n)                                           \
  _(ne, n)                                           \
  _(lt, n)                                           \
  _(le, n)                                           \
  _(gt, n)                                           \
  _(ge, n)                                           \
  _(isnan, r)                                        \
  _(bit_and, b)                                      \
  _(bit_or, b)                                       \
  _(bit_xor, b)                                      \
  _(bit_not, b)                                      \
  /* several exact operations, in PyTorch's order */ \
  _(rsqrt, r)                                        \
  _(lerp, r)    /* from a to b by c */               \
  _(addcmul, n) /* a + p0 b c */                     \
  _(addcdiv, r) /* a + p0 b / c */                   \
  _(relu, n)                                         \
  _(threshold, n)          /* a <= p0 ? p1 : a */    \
  _(threshold_backward, n) /* b <= p0 ? 0 : a */     \
  _(leaky_relu, r)         /* p0: slope */           \
  _(leaky_relu_backward, r)                          \
  _(hardtanh_backward, r) /* p0, p1: bounds */       \
  _(hardsigmoid, r)                                  \
  _(hardsigmoid_backward, r)                         \
  _(hardswish, r)                                    \
  _(hardswish_backward, r)                           \
  _(sigmoid_backward, r) /* a (1 - b) b */           \
  _(tanh_backward, r)    /* a (1 - b b) */           \
  /* transcendental */                               \
  _(exp, r)                                          \
  _(exp2, r)                                         \
  _(expm1, r)                                        \
  _(log, r)                                          \
  _(log1p, r)                                        \
  _(log2, r)                                         \
  _(log10, r)                                        \
  _(sin, r)                                          \
  _(cos, r)                                          \
  _(tan, r)                                          \
  _(asin, r)                                         \
  _(acos, r)                                         \
  _(atan, r)                                         \
  _(sinh, r)                                         \
  _(cosh, r)                                         \
  _(tanh, r)                                         \
  _(asinh, r)                                        \
  _(acosh, r)                                        \
  _(atanh, r)                                        \
  _(erf, r)                                          \
  _(erfc, r)                                         \
  _(sigmoid, r)                                      \
  _(silu, r)                                         \
  _(gelu, r)                                         \
  _(gelu_tanh, r)                                    \
  _(mish, r)                                         \
  _(atan2, r)                                        \
  _(pow, r)        /* a ^ b */                       \
  _(pow_number, r) /* a ^ p0 */                      \
  _(softplus, r)   /* p0: beta, p1: threshold */     \
  _(elu, r)        /* alpha, scale, input_scale */   \
  _(silu_backward, r)                                \
  _(gelu_backward, r)                                \
  _(gelu_tanh_backward, r)                           \
  _(mish_backward, r)                                \
  _(softplus_backward, r)                            \
  _(elu_backward, r)        /* from the input */     \
  _(elu_backward_result, r) /* from the result */    \
  /* of whole rows, see Note [Rows] */               \
  _(softmax, r)                                      \
  _(log_softmax, r)                                  \
  _(softmax_backward, r) /* gradient, result */      \
  _(log_softmax_backward, r)                         \
  _(moments, r)   /* p0: epsilon; pairs */           \
  _(normalize, r) /* a by the moments b, + row c */  \
  _(affine, r)    /* a b + c; b, c: one row each */  \
  /* for each row, from its pair of moments */       \
  _(mean_of, r)                                      \
  _(rstd_of, r)

enum class Op : uint8_t {
#define NEURON_TILE_OP(name, kinds) name,
  NEURON_TILE_OPS(NEURON_TILE_OP)
#undef NEURON_TILE_OP
      count_
};
inline constexpr int kOps = static_cast<int>(Op::count_);

constexpr const char* name_of(Op op) {
  constexpr const char* names[] = {
#define NEURON_TILE_OP(name, kinds) #name,
      NEURON_TILE_OPS(NEURON_TILE_OP)
#undef NEURON_TILE_OP
  };
  return names[static_cast<int>(op)];
}

/// Whether there is a function of this operation for tiles of `kind` (of operand b for `where`).
constexpr bool has_function(Op op, Kind kind) {
  constexpr char kinds[] = {
#define NEURON_TILE_OP(name, kinds) #kinds[0],
      NEURON_TILE_OPS(NEURON_TILE_OP)
#undef NEURON_TILE_OP
  };
  switch (kinds[static_cast<int>(op)]) {
    case 'r':
      return kind == Kind::f32 || kind == Kind::f64;
    case 'n':
      return kind != Kind::b8;
    case 'b':
      return kind == Kind::i64 || kind == Kind::b8;
    default:
      return true;
  }
}

// Note [Rows]
// Some operations look at whole rows: the last dimension of a row-major result. A tile of theirs is some whole rows, and each row is
// computed by itself in one fixed order, so a value depends on its row alone. Beside tiles of one value for each element there are those of
// one for each row, of two for each row (its moments: the mean, and the reciprocal of the standard deviation), and of one row that all rows
// share.
constexpr bool is_row(Op op) { return op >= Op::softmax && op <= Op::affine; }
enum class Span : uint8_t { elements, rows, pairs, row };
inline constexpr int kSpans = 4;

/// How many values a tile of `elements` elements in rows of `row` holds.
constexpr int64_t count_of(Span span, int64_t elements, int64_t row) {
  switch (span) {
    case Span::rows:
      return elements / row;
    case Span::pairs:
      return 2 * (elements / row);
    case Span::row:
      return row;
    default:
      return elements;
  }
}

/// Whether numbers of one kind become the other: all but reals to integers, whose result would depend on the processor where it overflows.
constexpr bool converts(Kind from, Kind to) { return !((from == Kind::f32 || from == Kind::f64) && to == Kind::i64); }

}  // namespace neuron::tiles
