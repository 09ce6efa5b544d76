// SPDX-License-Identifier: Apache-2.0
#include "comm/collective/balance.h"

#include <algorithm>
#include <cstdio>
#include <span>

#include "comm/plan/shares.h"

namespace agspeed::comm {
namespace {

/// Shorter ones neither gain nor tell much.
constexpr size_t kLargeBytes = size_t{4} << 20;
/// Intervals double up to this many bytes reduced: hosts change seldom.
constexpr uint64_t kLongestInterval = uint64_t{1} << 30;

}  // namespace

bool Balance::isDueBefore(const CollectiveCall& call) {
  const size_t numBytes = agreedBytes(call);
  if (gathered_.size() < 3 || call.collective != Collective::kAllReduce || numBytes < kLargeBytes) return false;
  numBytes_ += numBytes;
  if (numBytes_ < nextAt_) return false;
  nextAt_ = numBytes_ + interval_;
  interval_ = std::min(2 * interval_, kLongestInterval);
  return true;
}

CollectiveCall Balance::compare(int rank) {
  CollectiveCall call;
  call.collective = Collective::kAllGather;
  call.dtype = DType::kF64;
  call.output = splitEvenly(std::as_writable_bytes(std::span(gathered_)), static_cast<int>(gathered_.size()));
  call.input = {call.output[static_cast<size_t>(rank)]};
  return call;
}

std::vector<uint32_t> Balance::shares() {
  const double highest = *std::max_element(gathered_.begin(), gathered_.end());
  const bool isKnown = *std::min_element(gathered_.begin(), gathered_.end()) > 0;
  std::vector<double>& latest = compared_.emplace_back();
  for (const double rate : gathered_) latest.push_back(isKnown ? rate / highest : 1);
  if (compared_.size() > kNumComparisons) compared_.erase(compared_.begin());
  if (compared_.size() < kNumComparisons) return {};
  std::vector<double> rates = compared_[0];
  for (const auto& comparison : compared_) {
    for (size_t rank = 0; rank < rates.size(); ++rank) rates[rank] = std::max(rates[rank], comparison[rank]);
  }
  return sharesFor(rates);
}

std::string Balance::describe() const {
  std::string text;
  for (const double rate : gathered_) {
    char number[32];
    std::snprintf(number, sizeof number, "%.1f", rate * 1e-6);
    text += (text.empty() ? "" : ", ") + std::string(number);
  }
  return text + " MB/s";
}

}  // namespace agspeed::comm
