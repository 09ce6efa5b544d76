// SPDX-License-Identifier: Apache-2.0
// TunerEvent: everything that a driver reports to a tuner, as one kind of value.
//
//   tuner.report(StepFinished{.arm = "eager", .seconds = 0.0021, .shape = "8x128"});
//
// An event has a name (kName), which Python and the log use, and named fields (kFields), in the order of its members.
// The bindings, the log and the records of ranks (rank_record.h) are generated from kName and kFields. Plain values;
// safe from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <variant>

#include "runtime/tune/arms/arm.h"
#include "runtime/tune/config.h"

namespace agspeed::runtime::tune {

enum class FieldKind {
  kRequired,
  kOptional,  ///< if Python omits it, it is zero or empty
  kJson,      ///< required; JSON text in C++, and the parsed value in Python
};

template <typename Event, typename Value, FieldKind kind>
struct EventField {
  static constexpr FieldKind kKind = kind;
  using Type = Value;
  const char* name;
  Value Event::* member;
};

template <FieldKind kind = FieldKind::kRequired, typename Event, typename Value>
constexpr EventField<Event, Value, kind> field(const char* name, Value Event::* member) {
  return {name, member};
}

/// The driver needed this time before the first step, to load itself and to look up earlier decisions.
struct Started {
  double foregroundSeconds = 0;
  static constexpr const char* kName = "started";
  static constexpr auto kFields = std::tuple(field("foreground_seconds", &Started::foregroundSeconds));
};

struct CaptureFinished {
  double foregroundSeconds = 0;
  static constexpr const char* kName = "capture_finished";
  static constexpr auto kFields = std::tuple(field("foreground_seconds", &CaptureFinished::foregroundSeconds));
};

struct CaptureFailed {
  std::string reason = {};
  double foregroundSeconds = 0;
  static constexpr const char* kName = "capture_failed";
  static constexpr auto kFields =
      std::tuple(field("reason", &CaptureFailed::reason),
                 field<FieldKind::kOptional>("foreground_seconds", &CaptureFailed::foregroundSeconds));
};

/// A step captured more graphs. All arms that are not dead have to compile these, too, and are measured again.
/// Otherwise the new graphs would run eagerly in these arms, and the arms would look slower than they are. Allowed only
/// while tuning, and a limited number of times.
struct CaptureGrew {
  static constexpr const char* kName = "capture_grew";
  static constexpr auto kFields = std::tuple();
};

/// A better estimate of the capture's foreground cost, e.g. from the database or from an earlier model.
struct CaptureExpected {
  double foregroundSeconds = -1;  ///< ignored if negative
  static constexpr const char* kName = "expect_capture";
  static constexpr auto kFields = std::tuple(field("foreground_seconds", &CaptureExpected::foregroundSeconds));
};

/// A better estimate of the cost of loading: every arm is expected to take at least this time.
struct LoadsExpected {
  double foregroundSeconds = 0;
  static constexpr const char* kName = "expect_loads";
  static constexpr auto kFields = std::tuple(field("foreground_seconds", &LoadsExpected::foregroundSeconds));
};

/// Progress of an arm's compile, load or gate. Costs add up over events. An arm that failed is never used again. If it
/// was the chosen arm, eager runs from the next boundary on. Refused for an unknown arm, and for eager.
struct ArmChanged {
  std::string arm = {};
  ArmState state = ArmState::kReady;
  std::string reason = {};
  double backgroundSeconds = 0;
  double foregroundSeconds = 0;
  static constexpr const char* kName = "arm_changed";
  static constexpr auto kFields =
      std::tuple(field("arm", &ArmChanged::arm), field("state", &ArmChanged::state),
                 field<FieldKind::kOptional>("reason", &ArmChanged::reason),
                 field<FieldKind::kOptional>("background_seconds", &ArmChanged::backgroundSeconds),
                 field<FieldKind::kOptional>("foreground_seconds", &ArmChanged::foregroundSeconds));
};

/// One more arm, e.g. a refinement. After a decision, tuning resumes for it. Refused if the name exists.
struct ArmAdded {
  ArmSpec arm = {};
  static constexpr const char* kName = "add_arm";
  static constexpr auto kFields = std::tuple(field("arm", &ArmAdded::arm));
};

/// One finished training step, as the driver saw it. Refused for an unknown arm, and for seconds that are not positive
/// and finite.
struct StepFinished {
  std::string arm = {};  ///< the arm that really ran (eager if a guard failed)
  double seconds = 0;
  std::string shape = {};  ///< shape class; only steps of the same class are compared
  int64_t peakBytes = 0;   ///< peak of live bytes during the step; 0 = not measured
  bool disturbed = false;  ///< outside load, first step after a recompile, or a pause: never compared
  static constexpr const char* kName = "step_finished";
  static constexpr auto kFields = std::tuple(field("arm", &StepFinished::arm), field("seconds", &StepFinished::seconds),
                                             field<FieldKind::kOptional>("shape", &StepFinished::shape),
                                             field<FieldKind::kOptional>("peak_bytes", &StepFinished::peakBytes),
                                             field<FieldKind::kOptional>("disturbed", &StepFinished::disturbed));
};

/// `count` steps, at most quietSteps(), ran without a report, in `seconds` in total.
struct StepsSkipped {
  int64_t count = 0;
  double seconds = 0;
  static constexpr const char* kName = "steps_skipped";
  static constexpr auto kFields =
      std::tuple(field("count", &StepsSkipped::count), field("seconds", &StepsSkipped::seconds));
};

/// The findings() of an earlier process that captured the same graphs: its pairs count, and arms that lost are not
/// compiled again. Report it between the capture, or CaptureGrew, and the next advance(). Refused with the reason if
/// the text cannot be used; nothing has changed then.
struct Resumed {
  std::string findings = {};
  static constexpr const char* kName = "resume";
  static constexpr auto kFields = std::tuple(field<FieldKind::kJson>("findings", &Resumed::findings));
};

/// Training stopped for work of the driver that belongs to no arm.
struct Paused {
  double foregroundSeconds = 0;
  static constexpr const char* kName = "paused";
  static constexpr auto kFields = std::tuple(field("foreground_seconds", &Paused::foregroundSeconds));
};

/// The database has a decision for this arm. Refused for an unknown arm, and after the capture has begun.
struct Adopted {
  std::string arm = {};
  static constexpr const char* kName = "adopt";
  static constexpr auto kFields = std::tuple(field("arm", &Adopted::arm));
};

/// `numSearches` >= 1 tuners of this training loop, including this one, share the budget of tuning.
struct BudgetShared {
  int64_t numSearches = 1;
  static constexpr const char* kName = "share_budget";
  static constexpr auto kFields = std::tuple(field("num_searches", &BudgetShared::numSearches));
};

using TunerEvent =
    std::variant<Adopted, ArmAdded, ArmChanged, BudgetShared, CaptureExpected, CaptureFailed, CaptureFinished,
                 CaptureGrew, LoadsExpected, Paused, Resumed, Started, StepFinished, StepsSkipped>;

/// For the log: `arm_changed arm=native state=ready reason= background_seconds=1.5 foreground_seconds=0.2`.
std::string toText(const TunerEvent& event);

}  // namespace agspeed::runtime::tune
