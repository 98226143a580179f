#include "csrc/runtime/large_copy.h"

#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace neuron {
namespace {

#ifdef __SSE2__

constexpr size_t kStreamed = size_t{2} << 20;  // what is larger has left the cache before anybody reads it
constexpr size_t kLine = 64;
constexpr size_t kStreams = 4;

// `part`: bytes of each of the four streams, whole lines. `to` is aligned to a line.

__attribute__((target("avx512f"))) void stream_wide(char* to, const char* from, size_t part) {
  for (size_t i = 0; i < part; i += kLine)
    for (size_t at = i; at < kStreams * part; at += part)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), _mm512_loadu_si512(from + at));
  _mm_sfence();
}

void stream(char* to, const char* from, size_t part) {
  for (size_t i = 0; i < part; i += kLine) {
    for (size_t at = i; at < kStreams * part; at += part) {
      __m128i line[4];
      for (int k = 0; k < 4; ++k) line[k] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at) + k);
      for (int k = 0; k < 4; ++k) _mm_stream_si128(reinterpret_cast<__m128i*>(to + at) + k, line[k]);
    }
  }
  _mm_sfence();
}

#endif

}  // namespace

void copy_large(void* to, const void* from, size_t bytes) {
#ifdef __SSE2__
  if (bytes >= kStreamed) {
    auto* out = static_cast<char*>(to);
    const auto* in = static_cast<const char*>(from);
    const size_t head = -reinterpret_cast<uintptr_t>(out) % kLine;
    const size_t part = (bytes - head) / kStreams / kLine * kLine;
    std::memcpy(out, in, head);
    static const bool wide = __builtin_cpu_supports("avx512f");
    (wide ? stream_wide : stream)(out + head, in + head, part);
    const size_t done = head + kStreams * part;
    std::memcpy(out + done, in + done, bytes - done);
    return;
  }
#endif
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace neuron
