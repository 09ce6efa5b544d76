// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/arms/arm.h"

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/tune/tuner_event.h"

namespace agspeed::runtime::tune {
namespace {

constexpr std::array<std::pair<ArmState, std::string_view>, 8> kStateNames = {{
    {ArmState::kWaiting, "waiting"},
    {ArmState::kCompiling, "compiling"},
    {ArmState::kCompiled, "compiled"},
    {ArmState::kLoading, "loading"},
    {ArmState::kReady, "ready"},
    {ArmState::kRejected, "rejected"},
    {ArmState::kFailed, "failed"},
    {ArmState::kSkipped, "skipped"},
}};

}  // namespace

StatusOr<ArmState> parseArmState(std::string_view name) {
  for (const auto& [state, text] : kStateNames) {
    if (text == name) return state;
  }
  return invalidArgument("tuner: arm state \"" + std::string(name) +
                         "\" is unknown; use waiting, compiling, compiled, ready, rejected, failed or skipped");
}

std::string_view toString(ArmState state) { return kStateNames[static_cast<size_t>(state)].second; }

std::string_view toString(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOpen: return "open";
    case Verdict::kAccepted: return "accepted";
    case Verdict::kLost: return "lost";
  }
  return "unknown";
}

void Arm::skip(std::string why) {
  state = ArmState::kSkipped;
  reason = std::move(why);
}

void Arm::accept(std::string why, bool isEnough) {
  verdict = Verdict::kAccepted;
  reason = std::move(why);
  isConfirmed = isEnough;
}

void Arm::reopen() {
  verdict = Verdict::kOpen;
  reason.clear();
  numBlocks = 0;
  isConfirmed = false;
  beatenBy.clear();
  isTooLarge = false;
  versusEager.clear();
  duel.clear();
  duelAgainst.clear();
}

void Arm::forget() {
  reopen();
  numSteps = 0;
  shapes.clear();
  seconds.clear();
}

bool Arm::addStep(int32_t shape, const StepFinished& step, bool isUndisturbed) {
  ShapeRecord& record = shapes[shape];
  ++numSteps;
  lastSeconds = step.seconds;
  if (record.numSteps++ == 0) return false;
  if (!isUndisturbed) return true;
  record.seconds.add(step.seconds);
  seconds.add(step.seconds);
  if (step.peakBytes > 0) {
    record.peakBytes = std::max(record.peakBytes, step.peakBytes);
    ++record.numPeaks;
  }
  return true;
}

std::optional<double> Arm::typicalSeconds(int32_t shape) const {
  const auto it = shapes.find(shape);
  if (it == shapes.end() || it->second.seconds.empty()) return std::nullopt;
  return it->second.seconds.median();
}

}  // namespace agspeed::runtime::tune
