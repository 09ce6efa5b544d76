// SPDX-License-Identifier: Apache-2.0
#include "comm/compress/lossless.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "comm/compress/lossless_kernels.h"

namespace agspeed::comm::compress {
namespace {

constexpr size_t kBlockElements = 256;
constexpr size_t kMaxHeaderBytes = 3;

}  // namespace

bool hasLosslessCode(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16; }

size_t maxLosslessBytes(size_t numElements, DType dtype) {
  return numElements * sizeInBytes(dtype) + numElements / kBlockElements * kMaxHeaderBytes;
}

size_t encodeLossless(std::span<std::byte> target, const std::byte* source, size_t numElements, DType dtype) {
  return encodeByVectors(reinterpret_cast<uint8_t*>(target.data()), target.size(),
                         reinterpret_cast<const uint8_t*>(source), numElements, dtype);
}

Status decodeLossless(std::byte* target, size_t numElements, DType dtype, std::span<const std::byte> code) {
  if (decodeByVectors(reinterpret_cast<uint8_t*>(target), numElements, dtype,
                      reinterpret_cast<const uint8_t*>(code.data()), code.size())) {
    return {};
  }
  return dataLoss("{} bytes are not the lossless code of {} values of type {}", code.size(), numElements,
                  toString(dtype));
}

double estimateLosslessRatio(const std::byte* source, size_t numElements, DType dtype) {
  constexpr size_t kSamples = 4;
  const size_t numBlocks = numElements / kBlockElements;
  if (numBlocks == 0) return 1;
  const size_t numSamples = std::min(kSamples, numBlocks), blockBytes = kBlockElements * sizeInBytes(dtype);
  std::array<std::byte, kBlockElements * sizeof(float) + kMaxHeaderBytes> code;
  size_t sum = 0;
  for (size_t i = 0; i < numSamples; ++i) {
    sum += encodeLossless(code, source + numBlocks * i / numSamples * blockBytes, kBlockElements, dtype);
  }
  return static_cast<double>(numSamples * blockBytes) / static_cast<double>(sum);
}

}  // namespace agspeed::comm::compress
