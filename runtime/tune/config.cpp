// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/config.h"

#include <array>
#include <cmath>
#include <set>
#include <utility>

namespace agspeed::runtime::tune {
namespace {

constexpr std::array<std::pair<Mode, std::string_view>, 4> kModeNames = {{
    {Mode::kAuto, "auto"},
    {Mode::kDeterministic, "deterministic"},
    {Mode::kFastStart, "fast-start"},
    {Mode::kMax, "max"},
}};

struct Range {
  std::string_view name;
  double value;
  double low;
  double high;
};

Status checkRange(const Range& range) {
  if (range.value >= range.low && range.value <= range.high) return {};
  return invalidArgument("tuner: {} is {}, it must lie between {} and {}", range.name, range.value, range.low,
                         range.high);
}

Status checkRanges(const TunerConfig& c) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Range ranges[] = {
      {"captureSeconds", c.captureSeconds, 0, infinity},
      {"searchFraction", c.searchFraction, 0, 1},
      {"budgetFraction", c.budgetFraction, 0, 1},
      {"budgetSeconds", c.budgetSeconds, 0, infinity},
      {"fastStartSeconds", c.fastStartSeconds, 0, infinity},
      {"maxPauseSeconds", c.maxPauseSeconds, 1e-3, infinity},
      {"minGain", c.minGain, 0, 0.5},
      {"targetHalfWidth", c.targetHalfWidth, 1e-6, 0.5},
      {"confidence", c.confidence, 0.5, 0.99999},
      {"minPairs", double(c.minPairs), 1, 1e6},
      {"maxPairs", double(c.maxPairs), double(c.minPairs), 1e6},
      {"minRunSeconds", c.minRunSeconds, 0, 60},
      {"maxRunSteps", double(c.maxRunSteps), 1, 1e6},
      {"dropRatio", c.dropRatio, 1.01, 1e3},
      {"warmupSteps", double(c.warmupSteps), 0, 1e6},
      {"maxLateSteps", double(c.maxLateSteps), 0, 1e3},
      {"memoryFraction", c.memoryFraction, 0, 1e3},
      {"memorySlackBytes", double(c.memorySlackBytes), 0, 1e15},
      {"guardFraction", c.guardFraction, 0, 0.5},
      {"maxRetunes", double(c.maxRetunes), 0, 100},
      {"retuneAfterSteps", double(c.retuneAfterSteps), 1, 1e15},
  };
  for (const Range& range : ranges) AG_RETURN_IF_ERROR(checkRange(range));
  return {};
}

}  // namespace

StatusOr<Mode> parseMode(std::string_view name) {
  for (const auto& [mode, text] : kModeNames) {
    if (text == name) return mode;
  }
  return invalidArgument("tuner: mode \"" + std::string(name) +
                         "\" is unknown; use auto, max, fast-start or deterministic");
}

std::string_view toString(Mode mode) {
  for (const auto& [value, text] : kModeNames) {
    if (value == mode) return text;
  }
  return "unknown";
}

Status validate(const TunerConfig& config) {
  AG_RETURN_IF_ERROR(checkRanges(config));
  std::set<std::string_view> names = {kEagerArm};
  for (const ArmSpec& arm : config.arms) {
    if (arm.name.empty()) return invalidArgument("tuner: an arm has no name");
    if (!names.insert(arm.name).second) {
      return invalidArgument("tuner: arm \"" + arm.name + "\" is listed twice (eager is always there)");
    }
    AG_RETURN_IF_ERROR(checkRange({"compile_seconds of " + arm.name, arm.compileSeconds, 0, 1e9}));
    AG_RETURN_IF_ERROR(checkRange({"foreground_seconds of " + arm.name, arm.foregroundSeconds, 0, 1e9}));
  }
  if (!config.pinnedArm.empty() && !names.contains(config.pinnedArm)) {
    return invalidArgument("tuner: the pinned plan \"" + config.pinnedArm + "\" is not among the arms");
  }
  return {};
}

}  // namespace agspeed::runtime::tune
