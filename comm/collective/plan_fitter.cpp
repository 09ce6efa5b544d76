// SPDX-License-Identifier: Apache-2.0
#include "comm/collective/plan_fitter.h"

#include <utility>

#include "comm/plan/local_groups.h"
#include "comm/plan/shares.h"
#include "runtime/base/log.h"

namespace agspeed::comm::collective {

PlanFitter::PlanFitter(std::string group, int rank, int numRanks, plan::Plan plan)
    : group_(std::move(group)), rank_(rank), numRanks_(numRanks), plan_(std::move(plan)), stats_(numRanks) {}

plan::Choice PlanFitter::choose(const engine::CollectiveCall& call) const {
  return plan_.choose(call.collective, agreedBytes(call), numRanks_, call.isContiguous);
}

FittedChoice PlanFitter::fit(const engine::CollectiveCall& call, const plan::Choice& choice) const {
  FittedChoice fitted;
  const bool isWidened = reduce::accumulatorOf(call.dtype) != call.dtype;
  const bool isGrouped =
      choice.hierarchical && groups_ && plan::gainsFromLocalGroups(call.collective, isWidened, *groups_);
  fitted.algorithm = isGrouped ? choice.hierarchical : choice.algorithm;
  if (!choice.isByRule && choice.shares.empty() && !isWidened && !fitted_.rules.empty()) {
    const plan::Choice quicker = fitted_.choose(call.collective, agreedBytes(call), numRanks_, false);
    if (quicker.isByRule) fitted.algorithm = quicker.algorithm;
  }
  fitted.localGroups = usesLocalGroups(*fitted.algorithm) ? localGroups_ : nullptr;
  const bool choosesShares = choice.shares.empty() && plan::hasChunkPerRank(call.collective, *fitted.algorithm);
  fitted.shares = choosesShares ? shares_ : choice.shares;
  fitted.segmentBytes = choice.segmentBytes;
  if (choosesShares && !shares_.empty() && network_) {
    fitted.segmentBytes = segmentForShares(choice.segmentBytes, choice.window, numRanks_, *network_);
  }
  return fitted;
}

bool PlanFitter::isExchangeDueBefore(const engine::CollectiveCall& call) {
  return plan_.shares.empty() && stats_.isDueBefore(call);
}

void PlanFitter::applyHostStats() {
  const bool wereEqual = shares_.empty();
  const std::vector<int>* groupsBefore = localGroups_;
  setLocalGroups(stats_.localGroups());
  shares_ = groups_ ? std::vector<uint32_t>() : stats_.shares();
  network_ = stats_.network();
  if (rank_ == 0 && !(wereEqual && shares_.empty())) {
    AG_LOG(kInfo, "group '{}': ranks of unequal speed ({}) own chunks of unequal size", group_, stats_.describeRates());
  }
  if (rank_ == 0 && groups_ && localGroups_ != groupsBefore) {
    AG_LOG(kInfo, "group '{}': {} ranks share {} hosts; large collectives reduce and gather within each host first",
           group_, numRanks_, groups_->numGroups());
  }
  fitRules();
}

void PlanFitter::setLocalGroups(std::vector<int> firstRanks) {
  groups_.reset();
  localGroups_ = nullptr;
  if (firstRanks.empty()) return;
  localGroups_ = &*knownGroups_.insert(std::move(firstRanks)).first;
  groups_.emplace(numRanks_, *localGroups_);
}

void PlanFitter::fitRules() {
  fitted_.rules.clear();
  if (!network_ || groups_ || !shares_.empty()) return;
  if (!counted_) counted_ = plan::countAllReduces(numRanks_);
  fitted_.rules = fitToNetwork(*counted_, *network_, numRanks_);
}

}  // namespace agspeed::comm::collective
