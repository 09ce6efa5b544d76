// SPDX-License-Identifier: Apache-2.0
#include "comm/named/named_group_state.h"

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/base/format.h"

namespace agspeed::comm::named {
namespace {

engine::OperationState stateOf(const NamedOperation& operation, const NamedProgress& progress) {
  const Request& request = operation.request();
  engine::OperationState state;
  state.call = std::string(toString(request.kind));
  for (size_t i = 0; i < request.shapes.size(); ++i) {
    state.call += (i == 0 ? "(" : ", ") + toString(request.shapes[i]);
  }
  if (!request.shapes.empty()) state.call += formatText(" x {})", toString(request.dtype));
  state.name = request.name;
  state.since = progress.waitingSince;
  if (progress.coordinator == nullptr) state.awaited = {progress.members[0]};
  return state;
}

/// Adds the ranks that have not requested an operation, which only the coordinator knows.
void addMissing(const NamedProgress& progress, engine::GroupState& state) {
  for (const coordinator::Coordinator::Stalled& stalled : progress.coordinator->stalled(io::Clock::now())) {
    std::vector<int> missing;
    for (const int rank : stalled.missing) missing.push_back(progress.members[static_cast<size_t>(rank)]);
    const bool isOwnMissing = !stalled.missing.empty() && stalled.missing.front() == 0;  // this rank is rank 0
    if (isOwnMissing && state.notStarted.size() < engine::GroupState::kMaxOperations) {
      engine::OperationState& other = state.notStarted.emplace_back();
      other.name = stalled.name;
      other.since = stalled.since;
      other.awaited = std::move(missing);
    }
    if (isOwnMissing) continue;
    const auto own =
        std::find_if(state.operations.begin(), state.operations.end(),
                     [&](const engine::OperationState& operation) { return operation.name == stalled.name; });
    if (own == state.operations.end()) continue;  // the state lists only the first kMaxOperations operations
    own->since = stalled.since;
    own->awaited = std::move(missing);
  }
}

}  // namespace

engine::GroupState stateOf(const NamedProgress& progress) {
  engine::GroupState state;
  state.name = progress.name;
  state.isNamed = true;
  state.members.assign(progress.members.begin(), progress.members.end());
  state.failure = progress.failure;
  state.numOperations = progress.pending.size() + progress.unready.size();
  const auto add = [&](std::span<const NamedHandle> operations) {
    for (const NamedHandle& operation : operations) {
      if (state.operations.size() == engine::GroupState::kMaxOperations) return;
      state.operations.push_back(stateOf(*operation, progress));
    }
  };
  add(progress.unready);
  for (engine::OperationState& unready : state.operations) unready.blockedBy = "its inputs are not ready";
  add(progress.pending);
  if (progress.coordinator != nullptr) addMissing(progress, state);
  return state;
}

}  // namespace agspeed::comm::named
