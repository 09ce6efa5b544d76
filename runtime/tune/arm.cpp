// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/arm.h"

#include <algorithm>
#include <array>
#include <utility>

namespace agspeed::runtime::tune {
namespace {

constexpr int64_t kMinPeaks = 2;  ///< steps with a measured peak before memory is judged

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

double mebibytes(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

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

void Arm::reopen() {
  verdict = Verdict::kOpen;
  reason.clear();
  numBlocks = 0;
  isConfirmed = false;
  beatenBy.clear();
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

bool Arm::addStep(int32_t shape, const StepReport& step, bool isUndisturbed) {
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

std::optional<std::string> memoryObjection(const Arm& arm, const std::map<int32_t, int64_t>& eagerPeaks,
                                           const TunerConfig& config) {
  for (const auto& [shape, record] : arm.shapes) {
    const auto eager = eagerPeaks.find(shape);
    if (eager == eagerPeaks.end() || record.numPeaks < kMinPeaks) continue;
    const double limit =
        static_cast<double>(eager->second) * (1 + config.memoryFraction) + static_cast<double>(config.memorySlackBytes);
    if (static_cast<double>(record.peakBytes) <= limit) continue;
    return formatText("needs {:.1f} MiB at its peak, eager {:.1f} MiB (allowed: {:.0f} % + {:.0f} MiB more)",
                      mebibytes(record.peakBytes), mebibytes(eager->second), config.memoryFraction * 100,
                      mebibytes(config.memorySlackBytes));
  }
  return std::nullopt;
}

}  // namespace agspeed::runtime::tune
