// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/wire_coder.h"

#include <chrono>

#include "comm/compress/lossless.h"

namespace agspeed::comm::engine {
namespace {

using Clock = std::chrono::steady_clock;

/// For messages shorter than this, the work of coding costs more than the code saves.
constexpr size_t kMinBytes = 16 * 1024;
/// The ratio of lengths, values / code, for values that are easy to code. isWanted() returns false if even this ratio
/// would save no time.
constexpr double kGoodRatio = 3;
/// kWeight: the weight of a new measurement in the average cost. kReturn: if the average cost prevents a message from
/// being coded, it moves by this part towards the usual cost. Otherwise a cost that was once measured too high would
/// prevent coding forever.
constexpr double kWeight = 0.1, kReturn = 0.01;

/// The time of a clock is measured, not the processor time of the thread. If processes share a processor, the rate of
/// messages falls and this cost rises, so the comparison of both stays right.
void average(double& cost, Clock::time_point began, size_t numBytes) {
  const std::chrono::duration<double> took = Clock::now() - began;
  cost += kWeight * (took.count() / static_cast<double>(numBytes) - cost);
}

}  // namespace

bool WireCoder::isCodable(DType dtype, size_t numBytes) {
  return numBytes >= kMinBytes && compress::hasLosslessCode(dtype);
}

bool WireCoder::paysAt(double ratio) const {
  if (coding_ == WireCoding::kOn) return ratio > 1;
  const double rate = messenger_.bytesPerSecond();
  return rate > 0 && (1 - 1 / ratio) / rate > encodeCost_ + decodeCost_;
}

bool WireCoder::isWanted(int peer) const {
  return coding_ != WireCoding::kOff && messenger_.isRemote(peer) && paysAt(kGoodRatio);
}

size_t WireCoder::encode(std::span<std::byte> target, std::span<const std::byte> values, DType dtype) {
  const size_t numElements = values.size() / sizeInBytes(dtype);
  if (!paysAt(compress::estimateLosslessRatio(values.data(), numElements, dtype))) {
    encodeCost_ += kReturn * (kUsualEncodeCost - encodeCost_);
    decodeCost_ += kReturn * (kUsualDecodeCost - decodeCost_);
    return 0;
  }
  const Clock::time_point began = Clock::now();
  const size_t size = compress::encodeLossless(target.first(values.size() - 1), values.data(), numElements, dtype);
  average(encodeCost_, began, values.size());
  if (size == 0) return 0;
  counters_.numValueBytes += values.size();
  counters_.numCodeBytes += size;
  return size;
}

Status WireCoder::decode(std::span<std::byte> values, std::span<const std::byte> code, DType dtype) {
  const Clock::time_point began = Clock::now();
  Status status = compress::decodeLossless(values.data(), values.size() / sizeInBytes(dtype), dtype, code);
  average(decodeCost_, began, values.size());
  return status;
}

}  // namespace agspeed::comm::engine
