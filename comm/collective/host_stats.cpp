// SPDX-License-Identifier: Apache-2.0
#include "comm/collective/host_stats.h"

#include <algorithm>
#include <span>
#include <utility>

#include "comm/plan/local_groups.h"
#include "comm/plan/plan.h"
#include "comm/plan/shares.h"

namespace agspeed::comm::collective {
namespace {

/// Collectives of at least this number of bytes count towards the next exchange of statistics. Shorter ones show little
/// about how fast a host sends.
constexpr size_t kLargeBytes = size_t{4} << 20;
/// After kNumSoon exchanges, each exchange doubles the interval to the next one, up to kLongestInterval bytes. Hosts
/// seldom change, so frequent exchanges would be wasted.
constexpr int kNumSoon = 8;
constexpr uint64_t kLongestInterval = uint64_t{1} << 30;

/// The part of a message's latency that its sender and its receiver add to the latency of the network.
constexpr double kSecondsInRanks = 15e-6;

bool dependsOnHosts(schedule::Collective collective) {
  return collective == schedule::Collective::kAllReduce || collective == schedule::Collective::kAllGather ||
         collective == schedule::Collective::kReduceScatter;
}

}  // namespace

bool HostStatsExchange::isDueBefore(const engine::CollectiveCall& call) {
  const size_t numBytes = agreedBytes(call);
  if (gathered_.size() < 3 || !dependsOnHosts(call.collective) || numBytes <= plan::kMaxFlatBytes) return false;
  if (std::exchange(isFirst_, false)) return true;
  if (numBytes >= kLargeBytes) numBytes_ += numBytes;
  if (numBytes_ < nextAt_) return false;
  nextAt_ = numBytes_ + interval_;
  if (++numDue_ > kNumSoon) interval_ = std::min(2 * interval_, kLongestInterval);
  return true;
}

engine::CollectiveCall HostStatsExchange::gather(int rank) {
  engine::CollectiveCall call;
  call.collective = schedule::Collective::kAllGather;
  call.output = engine::splitEvenly(std::as_writable_bytes(std::span(gathered_)), static_cast<int>(gathered_.size()));
  call.input = {call.output[static_cast<size_t>(rank)]};
  call.isContiguous = true;
  return call;
}

std::vector<uint32_t> HostStatsExchange::shares() {
  std::vector<double> latest;
  for (const HostStats& stats : gathered_) latest.push_back(stats.bytesPerSecond);
  if (*std::min_element(latest.begin(), latest.end()) > 0) rates_.push_back(std::move(latest));
  if (rates_.size() > kNumExchanges) rates_.erase(rates_.begin());
  if (rates_.size() < kNumExchanges) return {};
  // Rates relative to the fastest rank: for each rank, the highest of the last exchanges.
  std::vector<double> rates(gathered_.size(), 0);
  for (const std::vector<double>& exchanged : rates_) {
    const double most = *std::max_element(exchanged.begin(), exchanged.end());
    for (size_t rank = 0; rank < rates.size(); ++rank) rates[rank] = std::max(rates[rank], exchanged[rank] / most);
  }
  return plan::sharesFor(rates);
}

std::vector<int> HostStatsExchange::localGroups() const {
  std::vector<uint32_t> hosts;
  for (const HostStats& stats : gathered_) hosts.push_back(static_cast<uint32_t>(stats.host));
  return plan::localGroupsOf(hosts);
}

std::optional<plan::NetworkMeasurement> HostStatsExchange::network() const {
  if (rates_.size() < kNumExchanges) return std::nullopt;
  plan::NetworkMeasurement network;
  network.bytesPerSecond = 0;
  for (const std::vector<double>& exchanged : rates_) {
    network.bytesPerSecond = std::max(network.bytesPerSecond, *std::min_element(exchanged.begin(), exchanged.end()));
  }
  double farthest = 0;
  for (const HostStats& stats : gathered_) {
    if (stats.roundTripSeconds <= 0) return std::nullopt;
    farthest = std::max(farthest, stats.roundTripSeconds);
  }
  network.latencySeconds = farthest / 2 + kSecondsInRanks;
  return network;
}

std::string HostStatsExchange::describeRates() const {
  std::string text;
  for (const HostStats& stats : gathered_) {
    text += formatText("{}{:.1f}", text.empty() ? "" : ", ", stats.bytesPerSecond * 1e-6);
  }
  return text + " MB/s";
}

}  // namespace agspeed::comm::collective
