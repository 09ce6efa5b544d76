// SPDX-License-Identifier: Apache-2.0
#include "comm/security/crc32c.h"

#include <array>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "runtime/base/byte_view.h"

namespace agspeed::comm::security {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // bit-reflected form of the Castagnoli polynomial

using ByteTable = std::array<uint32_t, 256>;

constexpr uint32_t shiftByZeroBits(uint32_t crc, size_t numBits) {
  for (size_t bit = 0; bit < numBits; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
  return crc;
}

constexpr ByteTable makeByteTable() {
  ByteTable table{};
  for (uint32_t value = 0; value < table.size(); ++value) table[value] = shiftByZeroBits(value, 8);
  return table;
}

constexpr ByteTable kByteTable = makeByteTable();

#if defined(__x86_64__)

/// The checksums of three consecutive runs of this many bytes are computed side by side, because the instruction has a
/// latency of three cycles. Then the three checksums are joined: crc(a b) = shift(crc(a)) xor crc(b), where crc(b)
/// starts from 0. The function shift() appends kRunBytes zeros to a message, which is a linear map of its checksum.
constexpr size_t kRunBytes = 1024;

using ShiftTable = std::array<ByteTable, 4>;

ShiftTable makeShiftTable() {
  std::array<uint32_t, 32> column{};
  for (size_t bit = 0; bit < column.size(); ++bit) column[bit] = shiftByZeroBits(uint32_t{1} << bit, kRunBytes * 8);
  ShiftTable table{};
  for (size_t byte = 0; byte < table.size(); ++byte) {
    for (size_t value = 0; value < 256; ++value) {
      for (size_t bit = 0; bit < 8; ++bit) table[byte][value] ^= (value >> bit & 1) != 0 ? column[byte * 8 + bit] : 0;
    }
  }
  return table;
}

uint32_t shiftByRun(const ShiftTable& table, uint32_t crc) {
  return table[0][crc & 0xff] ^ table[1][crc >> 8 & 0xff] ^ table[2][crc >> 16 & 0xff] ^ table[3][crc >> 24];
}

uint64_t loadWord(const std::byte* at) {
  uint64_t word = 0;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

__attribute__((target("sse4.2"))) uint32_t crc32cByInstruction(ByteView bytes, uint32_t crc) {
  static const ShiftTable kShift = makeShiftTable();
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  uint64_t sum = ~crc;
  while (left >= 3 * kRunBytes) {
    uint64_t second = 0;
    uint64_t third = 0;
    for (const std::byte* end = at + kRunBytes; at < end; at += 8) {
      sum = _mm_crc32_u64(sum, loadWord(at));
      second = _mm_crc32_u64(second, loadWord(at + kRunBytes));
      third = _mm_crc32_u64(third, loadWord(at + 2 * kRunBytes));
    }
    sum = shiftByRun(kShift, static_cast<uint32_t>(sum)) ^ second;
    sum = shiftByRun(kShift, static_cast<uint32_t>(sum)) ^ third;
    at += 2 * kRunBytes;
    left -= 3 * kRunBytes;
  }
  for (; left >= 8; left -= 8, at += 8) sum = _mm_crc32_u64(sum, loadWord(at));
  for (; left > 0; --left, ++at) sum = _mm_crc32_u8(static_cast<uint32_t>(sum), static_cast<uint8_t>(*at));
  return ~static_cast<uint32_t>(sum);
}

/// The number of bytes that are folded in parallel.
constexpr size_t kFoldedBytes = 256;

/// Returns the two factors for folding by `numBits`. They move 128 bits of a message `numBits` closer to its end, where
/// they are added (xor) to the bits there: each half is multiplied by one factor (Gopal et al., "Fast CRC Computation
/// for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009). Bits are reflected.
constexpr std::array<uint64_t, 2> foldBy(size_t numBits) {
  constexpr uint32_t kOne = 0x80000000;
  return {uint64_t{shiftByZeroBits(kOne, numBits + 32)} << 1, uint64_t{shiftByZeroBits(kOne, numBits - 32)} << 1};
}

/// Returns the checksum of a folded message. `left`: the folded form of all bytes before `after`. The start value is
/// folded in already, so the checksum of `left` starts from state 0.
uint32_t crc32cOfFolded(ByteView left, ByteView after) {
  return crc32cByInstruction(after, crc32cByInstruction(left, ~uint32_t{0}));
}

#define AGSPEED_FOLDING __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.2")))

AGSPEED_FOLDING __m512i fold(__m512i sum, __m512i factors, __m512i next) {
  constexpr int kXorOfThree = 0x96;
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(sum, factors, 0x00),
                                   _mm512_clmulepi64_epi128(sum, factors, 0x11), next, kXorOfThree);
}

AGSPEED_FOLDING __m512i factorsOf512(const std::array<uint64_t, 2>& by) {
  const auto first = static_cast<long long>(by[0]), second = static_cast<long long>(by[1]);
  return _mm512_set4_epi64(second, first, second, first);
}

AGSPEED_FOLDING uint32_t crc32cByFolding512(ByteView bytes, uint32_t crc) {
  if (bytes.size() < kFoldedBytes) return crc32cByInstruction(bytes, crc);
  constexpr size_t kVector = 64;
  static constexpr auto kFar = foldBy(8 * kFoldedBytes), kNear = foldBy(8 * kVector);
  const __m512i far = factorsOf512(kFar), near = factorsOf512(kNear);
  const auto load = [&](size_t at) AGSPEED_FOLDING { return _mm512_loadu_si512(bytes.data() + at); };
  __m512i sums[] = {load(0), load(kVector), load(2 * kVector), load(3 * kVector)};
  sums[0] = _mm512_xor_si512(sums[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(~crc))));
  size_t at = kFoldedBytes;
  for (; at + kFoldedBytes <= bytes.size(); at += kFoldedBytes) {
    for (size_t i = 0; i < 4; ++i) sums[i] = fold(sums[i], far, load(at + i * kVector));
  }
  __m512i sum = fold(fold(fold(sums[0], near, sums[1]), near, sums[2]), near, sums[3]);
  for (; at + kVector <= bytes.size(); at += kVector) sum = fold(sum, near, load(at));
  std::array<std::byte, kVector> left;
  _mm512_storeu_si512(left.data(), sum);
  return crc32cOfFolded(left, bytes.subspan(at));
}

#undef AGSPEED_FOLDING
#define AGSPEED_FOLDING __attribute__((target("avx2,vpclmulqdq,pclmul,sse4.2")))

AGSPEED_FOLDING __m256i fold(__m256i sum, __m256i factors, __m256i next) {
  return _mm256_xor_si256(_mm256_xor_si256(_mm256_clmulepi64_epi128(sum, factors, 0x00), next),
                          _mm256_clmulepi64_epi128(sum, factors, 0x11));
}

AGSPEED_FOLDING __m256i factorsOf256(const std::array<uint64_t, 2>& by) {
  const auto first = static_cast<long long>(by[0]), second = static_cast<long long>(by[1]);
  return _mm256_set_epi64x(second, first, second, first);
}

/// Folds 256 bits at a time, for processors that have VPCLMULQDQ for 256 bits but no AVX-512.
AGSPEED_FOLDING uint32_t crc32cByFolding256(ByteView bytes, uint32_t crc) {
  if (bytes.size() < kFoldedBytes) return crc32cByInstruction(bytes, crc);
  constexpr size_t kVector = 32, kVectors = kFoldedBytes / kVector;
  static constexpr auto kFar = foldBy(8 * kFoldedBytes), kNear = foldBy(8 * kVector);
  const __m256i far = factorsOf256(kFar), near = factorsOf256(kNear);
  const auto load = [&](size_t at) AGSPEED_FOLDING {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes.data() + at));
  };
  __m256i sums[kVectors];
  for (size_t i = 0; i < kVectors; ++i) sums[i] = load(i * kVector);
  sums[0] = _mm256_xor_si256(sums[0], _mm256_zextsi128_si256(_mm_cvtsi32_si128(static_cast<int>(~crc))));
  size_t at = kFoldedBytes;
  for (; at + kFoldedBytes <= bytes.size(); at += kFoldedBytes) {
    for (size_t i = 0; i < kVectors; ++i) sums[i] = fold(sums[i], far, load(at + i * kVector));
  }
  __m256i sum = sums[0];
  for (size_t i = 1; i < kVectors; ++i) sum = fold(sum, near, sums[i]);
  for (; at + kVector <= bytes.size(); at += kVector) sum = fold(sum, near, load(at));
  std::array<std::byte, kVector> left;
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(left.data()), sum);
  return crc32cOfFolded(left, bytes.subspan(at));
}

#undef AGSPEED_FOLDING

#endif

std::vector<Crc32cMethod> methodsOfProcessor() {
  std::vector<Crc32cMethod> methods;
#if defined(__x86_64__)
  const bool hasInstruction = __builtin_cpu_supports("sse4.2") != 0;
  const bool canMultiply =
      hasInstruction && __builtin_cpu_supports("vpclmulqdq") != 0 && __builtin_cpu_supports("pclmul") != 0;
  if (canMultiply && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vl") != 0) {
    methods.push_back({"folding 512 bits", crc32cByFolding512});
  }
  if (canMultiply && __builtin_cpu_supports("avx2") != 0) methods.push_back({"folding 256 bits", crc32cByFolding256});
  if (hasInstruction) methods.push_back({"instruction", crc32cByInstruction});
#endif
  methods.push_back({"table", crc32cByTable});
  return methods;
}

}  // namespace

uint32_t crc32cByTable(ByteView bytes, uint32_t crc) {
  crc = ~crc;
  for (const std::byte byte : bytes) crc = (crc >> 8) ^ kByteTable[(crc ^ static_cast<uint32_t>(byte)) & 0xff];
  return ~crc;
}

std::span<const Crc32cMethod> crc32cMethods() {
  static const std::vector<Crc32cMethod> kMethods = methodsOfProcessor();
  return kMethods;
}

uint32_t crc32c(ByteView bytes, uint32_t crc) {
  static const auto kCompute = crc32cMethods().front().compute;
  return kCompute(bytes, crc);
}

}  // namespace agspeed::comm::security
