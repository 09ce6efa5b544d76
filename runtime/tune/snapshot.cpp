// SPDX-License-Identifier: Apache-2.0
// The Tuner's state as JSON for the report and the database.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/base/format.h"
#include "runtime/tune/tuner.h"

namespace agspeed::runtime::tune {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSnapshotVersion = 1;

/// Returns the number as JSON. JSON has no infinities, so they become null.
Json finite(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json toJson(const Interval& interval, double confidence) {
  return {{"estimate", finite(interval.estimate)},
          {"low", finite(interval.low)},
          {"high", finite(interval.high)},
          {"pairs", interval.count},
          {"confidence", confidence}};
}

Json comparisonJson(const Comparison& comparison, double confidence) {
  if (comparison.numPairs() == 0) return nullptr;
  Json json = toJson(comparison.ratio(confidence), confidence);
  json["sum_ratio"] = toJson(comparison.sumRatio(confidence), confidence);
  return json;
}

Json samplesJson(const RollingWindow& window) {
  if (window.empty()) return nullptr;
  const std::vector<double>& values = window.values();
  return {{"count", values.size()},       {"p05", quantile(values, 0.05)}, {"p25", quantile(values, 0.25)},
          {"p50", quantile(values, 0.5)}, {"p75", quantile(values, 0.75)}, {"p95", quantile(values, 0.95)}};
}

Json armJson(const Arm& arm, double confidence) {
  int64_t peakBytes = 0;
  for (const auto& [shape, record] : arm.shapes) peakBytes = std::max(peakBytes, record.peakBytes);
  Json json = {{"name", arm.spec.name},
               {"state", toString(arm.state)},
               {"verdict", toString(arm.verdict)},
               {"reason", arm.reason},
               {"is_too_large", arm.isTooLarge},
               {"steps", arm.numSteps},
               {"seconds", samplesJson(arm.seconds)},
               {"ratio", comparisonJson(arm.versusEager, confidence)},
               {"peak_bytes", peakBytes},
               {"background_seconds", arm.backgroundSeconds},
               {"foreground_seconds", arm.foregroundSeconds}};
  if (arm.duel.numPairs() > 0) {
    json["duel"] = {{"against", arm.duelAgainst}, {"ratio", comparisonJson(arm.duel, confidence)}};
  }
  return json;
}

Json decisionJson(const Decision& decision, double confidence) {
  return {{"arm", decision.arm},
          {"reason", decision.reason},
          {"ratio", decision.ratio ? toJson(*decision.ratio, confidence) : Json(nullptr)},
          {"step", decision.step},
          {"wall_seconds", decision.wallSeconds},
          {"from_database", decision.isFromDatabase}};
}

Json ledgerJson(const Ledger& ledger) {
  return {{"steps", ledger.numSteps()},
          {"trained_seconds", ledger.trainedSeconds()},
          {"foreground_seconds", ledger.foregroundSeconds()},
          {"inflation_seconds", ledger.inflationSeconds()},
          {"trial_seconds", ledger.trialSeconds()},
          {"slowdown_seconds", ledger.slowdownSeconds()},
          {"background_seconds", ledger.backgroundSeconds()},
          {"saved_seconds", ledger.savedSeconds()},
          {"allowance_seconds", finite(ledger.allowanceSeconds())}};
}

/// Returns the median seconds per step of eager's runs in all pairs, or null if there are no pairs.
Json eagerPairedSeconds(const ArmSet& arms, const DriftGuard& guard) {
  std::vector<double> seconds;
  const auto add = [&](const Comparison& comparison) {
    for (const RunPair& pair : comparison.pairs()) seconds.push_back(pair.reference);
  };
  for (const Arm& arm : arms) add(arm.versusEager);
  add(guard.recheck());
  return seconds.empty() ? Json(nullptr) : finite(median(std::move(seconds)));
}

}  // namespace

std::string Tuner::snapshot() const {
  Json arms = Json::array();
  for (const Arm& arm : arms_) arms.push_back(armJson(arm, config_.confidence));
  Json shapes = Json::array();
  for (size_t i = 0; i < shapes_.names().size(); ++i) {
    const std::optional<double> eager = arms_.eager().typicalSeconds(static_cast<int32_t>(i));
    shapes.push_back({{"shape", shapes_.names()[i]}, {"eager_seconds", eager ? Json(*eager) : Json(nullptr)}});
  }
  Json timeline = Json::array();
  for (const TimelineEntry& entry : timeline_) {
    timeline.push_back({{"what", entry.what},
                        {"arm", entry.arm},
                        {"step", entry.step},
                        {"wall_seconds", entry.wallSeconds},
                        {"reason", entry.reason}});
  }
  Json json = {{"version", kSnapshotVersion},
               {"mode", toString(config_.mode)},
               {"phase", toString(phase_)},
               {"status", status()},
               {"reason", statusReason()},
               {"current", current()},
               {"incumbent", arms_.best().spec.name},
               {"decision", decision_ ? decisionJson(*decision_, config_.confidence) : Json(nullptr)},
               {"arms", std::move(arms)},
               {"shapes", std::move(shapes)},
               {"eager_paired_seconds", eagerPairedSeconds(arms_, guard_)},
               {"resumed_pairs", numResumedPairs()},
               {"ledger", ledgerJson(ledger_)},
               {"guard",
                {{"blocks", guard_.numRechecks()},
                 {"suspicions", guard_.numSuspicions()},
                 {"rollbacks", numRollbacks_},
                 {"retunes", numRetunes_},
                 {"ratio", comparisonJson(guard_.recheck(), config_.confidence)}}},
               {"timeline", std::move(timeline)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string Tuner::decisionRecord() const {
  AG_CHECK(decision_.has_value(), "there is no decision yet");
  Json arms = Json::array();
  for (const Arm& arm : arms_) {
    const Interval ratio = arm.versusEager.ratio(config_.confidence);
    arms.push_back({{"name", arm.spec.name},
                    {"state", toString(arm.state)},
                    {"reason", arm.reason},
                    {"ratio", ratio.count > 0 ? toJson(ratio, config_.confidence) : Json(nullptr)}});
  }
  const Json json = {{"arm", decision_->arm},
                     {"reason", decision_->reason},
                     {"ratio", decision_->ratio ? toJson(*decision_->ratio, config_.confidence) : Json(nullptr)},
                     {"eager_seconds", arms_.eagerSeconds()},
                     {"slowdown_seconds", ledger_.slowdownSeconds()},
                     {"mode", toString(config_.mode)},
                     {"arms", std::move(arms)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace agspeed::runtime::tune
