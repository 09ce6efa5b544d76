// SPDX-License-Identifier: Apache-2.0
#include "comm/named/stall_inspector.h"

#include "runtime/base/format.h"
#include "runtime/base/log.h"

namespace agspeed::comm::named {
namespace {

constexpr size_t kMaxNames = 6;

}  // namespace

std::string StallInspector::inspect(const coordinator::Coordinator& coordinator, io::Clock::time_point now) {
  if (warning_ <= io::Clock::duration::zero() || now < nextWarning_) return "";
  const std::vector<coordinator::Coordinator::Stalled> all = coordinator.stalled(now - warning_);
  if (all.empty()) return "";
  const std::string text = describe(all);
  AG_LOG(kWarn, "{}", text);
  nextWarning_ = now + warning_;
  const bool isOver = shutdown_ > io::Clock::duration::zero() && now - all[0].since >= shutdown_;
  return isOver ? text : "";
}

std::string StallInspector::describe(const std::vector<coordinator::Coordinator::Stalled>& all) const {
  std::vector<std::string> names(members_.size());
  std::vector<size_t> counts(members_.size(), 0);
  for (const coordinator::Coordinator::Stalled& stalled : all) {
    for (const int rank : stalled.missing) {
      const auto at = static_cast<size_t>(rank);
      if (++counts[at] > kMaxNames) continue;
      names[at] += (counts[at] > 1 ? ", " : "") + stalled.name;
    }
  }
  std::string missing;
  for (size_t rank = 0; rank < names.size(); ++rank) {
    if (counts[rank] == 0) continue;
    missing += formatText(" {}: [{}{}]", members_[rank], names[rank], counts[rank] > kMaxNames ? ", ..." : "");
  }
  return formatText(
      "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting "
      "for remainder of ranks for more than {:g} seconds. This may indicate that different ranks are trying to submit "
      "different tensors or that only subset of ranks is submitting tensors, which will cause deadlock. Missing "
      "ranks:{}",
      std::chrono::duration<double>(warning_).count(), missing);
}

}  // namespace agspeed::comm::named
