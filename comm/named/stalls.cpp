// SPDX-License-Identifier: Apache-2.0
// NamedGroup while it waits: whether the awaited ranks are alive, and which operations some ranks never start.
#include <algorithm>

#include "comm/named/named_group.h"
#include "runtime/base/format.h"
#include "runtime/base/log.h"

namespace agspeed::comm {
namespace {

constexpr size_t kMaxStalledNames = 6;

}  // namespace

Clock::time_point NamedGroup::tick(Clock::time_point now) {
  if (!failure_) return Clock::time_point::max();
  if (!unready_.empty()) checkReadiness();
  if (isCoordinator()) {
    if (now >= heldSince_) workSoon();
    const auto next = watchAwaited(now) ? now + kWatchAfter : Clock::time_point::max();
    return std::min(next, checkStalled(now));
  }
  if (pending_.empty()) return Clock::time_point::max();
  if (now >= waitingSince_ + kWatchAfter) stream_.watch(0);
  return std::max(now, waitingSince_) + kWatchAfter;
}

bool NamedGroup::watchAwaited(Clock::time_point now) {
  std::vector<int> awaited = coordinator_->unjoined();
  const std::vector<Coordinator::Stalled> waiting = coordinator_->stalled(now);
  for (const Coordinator::Stalled& each : waiting) {
    if (each.since + kWatchAfter <= now) awaited.insert(awaited.end(), each.missing.begin(), each.missing.end());
  }
  for (const int rank : awaited) {
    if (rank != 0) stream_.watch(rank);
  }
  return !awaited.empty() || !waiting.empty();
}

Clock::time_point NamedGroup::checkStalled(Clock::time_point now) {
  const auto warning = options_.stallWarning;
  if (warning <= Clock::duration::zero()) return Clock::time_point::max();
  if (now < nextStallWarning_) return nextStallWarning_;
  const std::vector<Coordinator::Stalled> all = coordinator_->stalled(now - warning);
  if (all.empty()) {
    const std::vector<Coordinator::Stalled> younger = coordinator_->stalled(now);
    return younger.empty() ? Clock::time_point::max() : younger[0].since + warning;
  }
  std::vector<std::string> names(static_cast<size_t>(size()));
  std::vector<size_t> counts(static_cast<size_t>(size()), 0);
  for (const Coordinator::Stalled& stalled : all) {
    for (const int rank : stalled.missing) {
      const auto at = static_cast<size_t>(rank);
      if (++counts[at] > kMaxStalledNames) continue;
      names[at] += (counts[at] > 1 ? ", " : "") + stalled.name;
    }
  }
  std::string missing;
  for (size_t rank = 0; rank < names.size(); ++rank) {
    if (counts[rank] == 0) continue;
    missing += formatText(" {}: [{}{}]", options_.group.members[rank], names[rank],
                          counts[rank] > kMaxStalledNames ? ", ..." : "");
  }
  const std::string text = formatText(
      "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting "
      "for "
      "remainder of ranks for more than {:g} seconds. This may indicate that different ranks are trying to submit "
      "different tensors or that only subset of ranks is submitting tensors, which will cause deadlock. Missing "
      "ranks:{}",
      std::chrono::duration<double>(warning).count(), missing);
  AG_LOG(kWarn, "{}", text);
  const auto limit = options_.stallShutdown;
  if (limit > Clock::duration::zero() && now - all[0].since >= limit) fail(resourceExhausted(std::string(text)));
  nextStallWarning_ = now + warning;
  return nextStallWarning_;
}

}  // namespace agspeed::comm
