// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d/monitored_barrier.h"

#include <cstdlib>
#include <optional>

#include "runtime/base/format.h"

namespace agspeed::comm::c10d {
namespace {

const std::string kAllArrived = "all arrived";

// Returns a key of the group. here/<rank> holds the number of the last barrier that the rank has entered.
// count/<number> holds how many ranks have entered a barrier. outcome/<number> holds the outcome of a barrier, which is
// set once.
std::string key(const MonitoredBarrier& barrier, const char* what, uint64_t number) {
  return formatText("monitored/{}/{}/{}", barrier.id, what, number);
}

/// Returns the missing ranks as a text such as "Ranks 1, 3", or an empty text if all ranks have arrived in the
/// meantime.
StatusOr<std::string> missingRanks(Store& store, const MonitoredBarrier& barrier) {
  std::string missing;
  int numMissing = 0;
  for (int rank = 0; rank < barrier.size; ++rank) {
    AG_ASSIGN_OR_RETURN(const std::optional<std::string> last,
                        store.tryGet(key(barrier, "here", static_cast<uint64_t>(rank))));
    const bool isHere = last.has_value() && std::strtoull(last->c_str(), nullptr, 10) >= barrier.number;
    if (isHere || (numMissing > 0 && !barrier.areAllNamed)) continue;
    missing += formatText("{}{}", numMissing++ > 0 ? ", " : "", rank);
  }
  if (numMissing == 0) return std::string();
  return (numMissing > 1 ? "Ranks " : "Rank ") + missing;
}

Status asStatus(const MonitoredBarrier& barrier, const std::string& outcome) {
  if (outcome == kAllArrived) return {};
  return unavailable("[Rank {}]: {}", barrier.rank, outcome);
}

}  // namespace

Status runBarrier(Store& store, const MonitoredBarrier& barrier) {
  const auto deadline = std::chrono::steady_clock::now() + barrier.timeout;
  const std::string outcomeKey = key(barrier, "outcome", barrier.number);
  AG_RETURN_IF_ERROR(
      store.set(key(barrier, "here", static_cast<uint64_t>(barrier.rank)), std::to_string(barrier.number)));
  AG_ASSIGN_OR_RETURN(const int64_t numHere, store.add(key(barrier, "count", barrier.number), 1));
  if (numHere == barrier.size) {
    AG_ASSIGN_OR_RETURN(const std::string outcome, store.setOnce(outcomeKey, kAllArrived));
    return asStatus(barrier, outcome);
  }
  AG_ASSIGN_OR_RETURN(const std::optional<std::string> decided, store.getUntil(outcomeKey, deadline));
  if (decided.has_value()) return asStatus(barrier, *decided);
  AG_ASSIGN_OR_RETURN(const std::string missing, missingRanks(store, barrier));
  const std::string failure = formatText(
      "Rank {} timed out in monitoredBarrier: {} failed to pass monitoredBarrier in {} ms (barrier {} of group '{}')",
      barrier.rank, missing, barrier.timeout.count(), barrier.number, barrier.group);
  AG_ASSIGN_OR_RETURN(const std::string outcome, store.setOnce(outcomeKey, missing.empty() ? kAllArrived : failure));
  return asStatus(barrier, outcome);
}

}  // namespace agspeed::comm::c10d
