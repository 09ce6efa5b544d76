// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/wire_coder.h"

#include <time.h>

#include "comm/compress/lossless.h"

namespace agspeed::comm::engine {
namespace {

/// For messages shorter than this, the work of coding costs more than the code saves.
constexpr size_t kMinBytes = 16 * 1024;
/// The ratio of lengths, values / code, for values that are easy to code. isWanted() returns false if even this ratio
/// would save no time.
constexpr double kGoodRatio = 3;
/// kWeight is the weight of a new measurement in the average cost. If the average cost prevents a message from being
/// coded, the average moves by the part kReturn towards the usual cost. Otherwise a cost that was once measured too
/// high would prevent coding forever.
constexpr double kWeight = 0.1, kReturn = 0.01;

/// A driver that is busier than this is limited by the processor and not by the network, so a code would slow it down.
/// On an Intel Xeon, /proc/<pid>/task/<tid>/schedstat showed that drivers were busy for 0.3 of the time in benchmark
/// case comm/coded-4 with codes. They were busy for 0.9 to 1 of the time in comm/coded-unshaped.
constexpr double kMostBusy = 0.7;

/// Returns the processor time of this thread. Unlike the time of a clock, it does not grow while other ranks use the
/// same processor.
double threadSeconds() {
  timespec now = {};
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void average(double& cost, double began, size_t numBytes) {
  cost += kWeight * ((threadSeconds() - began) / static_cast<double>(numBytes) - cost);
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

bool WireCoder::isWanted(int peer, std::span<const std::byte> values, DType dtype) {
  if (coding_ == WireCoding::kOff || !messenger_.isRemote(peer) || !paysAt(kGoodRatio)) return false;
  if (coding_ == WireCoding::kAuto && load_.busyShare(io::Clock::now()) > kMostBusy) return false;
  if (paysAt(compress::estimateLosslessRatio(values.data(), values.size() / sizeInBytes(dtype), dtype))) return true;
  encodeCost_ += kReturn * (kUsualEncodeCost - encodeCost_);
  decodeCost_ += kReturn * (kUsualDecodeCost - decodeCost_);
  return false;
}

size_t WireCoder::encode(std::span<std::byte> target, std::span<const std::byte> values, DType dtype) {
  const size_t numElements = values.size() / sizeInBytes(dtype);
  const double began = threadSeconds();
  const size_t size = compress::encodeLossless(target.first(values.size() - 1), values.data(), numElements, dtype);
  average(encodeCost_, began, values.size());
  if (size == 0) return 0;
  counters_.numValueBytes += values.size();
  counters_.numCodeBytes += size;
  return size;
}

Status WireCoder::decode(std::span<std::byte> values, std::span<const std::byte> code, DType dtype) {
  const double began = threadSeconds();
  Status status = compress::decodeLossless(values.data(), values.size() / sizeInBytes(dtype), dtype, code);
  average(decodeCost_, began, values.size());
  return status;
}

}  // namespace agspeed::comm::engine
