// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/rank_record.h"

#include <nlohmann/json.hpp>

#include "runtime/base/json_depth.h"

namespace agspeed::runtime::tune {
namespace {

using Json = nlohmann::json;

/// Visits every member of a record that is a number, a bool or a text; one row each.
template <typename Record, typename Visit>
void visitPlainMembers(Record& record, Visit visit) {
  visit("digest", record.digest);
  visit("carried", record.hasCarriedOut);
  visit("leaving", record.leaving);
  visit("start_up", record.startUpSeconds);
  visit("paused", record.pausedSeconds);
  visit("capture_estimate", record.captureEstimate);
  visit("load_estimate", record.loadEstimate);
  visit("searches", record.numSearches);
  visit("adopted", record.adopted);
  visit("skipped", record.numSkipped);
  visit("skipped_seconds", record.skippedSeconds);
  visit("grown", record.hasGrown);
  visit("findings", record.findings);
}

Json toJson(const ArmSpec& arm) {
  return {{"name", arm.name},
          {"compile", arm.compileSeconds},
          {"foreground", arm.foregroundSeconds},
          {"for", arm.standsInFor}};
}

ArmSpec toArmSpec(const Json& json) {
  return {json.at("name").get<std::string>(), json.at("compile").get<double>(), json.at("foreground").get<double>(),
          json.at("for").get<std::string>()};
}

Json toJson(const ArmEvent& event) {
  return {{"arm", event.arm},
          {"state", toString(event.state)},
          {"reason", event.reason},
          {"background", event.backgroundSeconds},
          {"foreground", event.foregroundSeconds}};
}

StatusOr<ArmEvent> toArmEvent(const Json& json) {
  AG_ASSIGN_OR_RETURN(const ArmState state, parseArmState(json.at("state").get<std::string>()));
  return ArmEvent{json.at("arm").get<std::string>(), state, json.at("reason").get<std::string>(),
                  json.at("background").get<double>(), json.at("foreground").get<double>()};
}

Json toJson(const StepReport& step) {
  return {{"arm", step.arm},
          {"seconds", step.seconds},
          {"shape", step.shape},
          {"peak", step.peakBytes},
          {"disturbed", step.disturbed}};
}

StepReport toStepReport(const Json& json) {
  return {json.at("arm").get<std::string>(), json.at("seconds").get<double>(), json.at("shape").get<std::string>(),
          json.at("peak").get<int64_t>(), json.at("disturbed").get<bool>()};
}

StatusOr<RankRecord> toRecord(const Json& json) {
  RankRecord record;
  visitPlainMembers(record, [&](const char* name, auto& member) { json.at(name).get_to(member); });
  if (const auto capture = json.find("capture"); capture != json.end()) {
    record.capture = {capture->at("failure").get<std::string>(), capture->at("seconds").get<double>()};
  }
  if (const auto step = json.find("step"); step != json.end()) record.step = toStepReport(*step);
  for (const Json& arm : json.at("new_arms")) record.newArms.push_back(toArmSpec(arm));
  for (const Json& entry : json.at("arms")) {
    AG_ASSIGN_OR_RETURN(ArmEvent event, toArmEvent(entry));
    std::string name = event.arm;
    record.arms.emplace(std::move(name), std::move(event));
  }
  return record;
}

}  // namespace

std::string RankRecord::toText() const {
  Json json;
  visitPlainMembers(*this, [&](const char* name, const auto& member) { json[name] = member; });
  if (capture) json["capture"] = {{"failure", capture->failure}, {"seconds", capture->seconds}};
  if (step) json["step"] = toJson(*step);
  json["new_arms"] = Json::array();
  for (const ArmSpec& arm : newArms) json["new_arms"].push_back(toJson(arm));
  json["arms"] = Json::array();
  for (const auto& [name, event] : arms) json["arms"].push_back(toJson(event));
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

StatusOr<RankRecord> RankRecord::parse(std::string_view text) {
  if (isNestedTooDeep(text)) return invalidArgument("a rank's record cannot be read: it is nested too deep");
  try {
    return toRecord(Json::parse(text));
  } catch (const Json::exception& error) {
    return invalidArgument("a rank's record cannot be read: {}", error.what());
  }
}

}  // namespace agspeed::runtime::tune
