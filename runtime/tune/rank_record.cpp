// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/rank_record.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <tuple>
#include <type_traits>
#include <utility>

#include "runtime/base/json_depth.h"

namespace agspeed::runtime::tune {
namespace {

using Json = nlohmann::json;

/// The names of an event's fields in the text of a record.
template <typename Event>
using Keys = std::array<const char*, std::tuple_size_v<decltype(Event::kFields)>>;

/// Calls visit(field, key) for each field of an event.
template <typename Event, typename Visit>
void visitFields(const Keys<Event>& keys, Visit visit) {
  size_t index = 0;
  std::apply([&](const auto&... fields) { (visit(fields, keys[index++]), ...); }, Event::kFields);
}

constexpr Keys<CaptureFailed> kCaptureKeys = {"failure", "seconds"};
constexpr Keys<StepFinished> kStepKeys = {"arm", "seconds", "shape", "peak", "disturbed"};

// --- sums: events that join into one of their kind ------------------------------------------------------------------

/// How a later event changes the fields of an earlier event of the same kind and rank.
enum class Join { kAdd, kHighest, kLatest };

template <typename Kind>
struct SumRow {
  using Event = Kind;
  Join join;
  Keys<Event> keys;
};

/// The kinds of events, in the order in which a tuner gets the combined events.
constexpr std::tuple kSumRows = {
    SumRow<Started>{Join::kAdd, {"start_up"}},
    SumRow<Paused>{Join::kAdd, {"paused"}},
    SumRow<BudgetShared>{Join::kLatest, {"searches"}},
    SumRow<CaptureExpected>{Join::kLatest, {"capture_estimate"}},
    SumRow<LoadsExpected>{Join::kHighest, {"load_estimate"}},
    SumRow<StepsSkipped>{Join::kAdd, {"skipped", "skipped_seconds"}},
    SumRow<Adopted>{Join::kLatest, {"adopted"}},
    SumRow<Resumed>{Join::kLatest, {"findings"}},
};

/// Calls visit(row) for each row.
template <typename Visit>
void visitRows(Visit visit) {
  std::apply([&](const auto&... rows) { (visit(rows), ...); }, kSumRows);
}

/// Returns the event of this kind in `sums`, or an event with default values if there is none.
template <typename Event>
Event sumOf(const RankRecord& record) {
  for (const TunerEvent& event : record.sums) {
    if (const Event* found = std::get_if<Event>(&event)) return *found;
  }
  return {};
}

template <typename Value>
void join(Join how, Value& sum, const Value& next) {
  if constexpr (std::is_arithmetic_v<Value>) {
    if (how == Join::kAdd) return void(sum += next);
    if (how == Join::kHighest) return void(sum = std::max(sum, next));
  }
  sum = next;
}

template <typename Event>
bool hasContent(const Event& event) {
  const auto isSet = [&](const auto& field) { return event.*field.member != Event{}.*field.member; };
  return std::apply([&](const auto&... fields) { return (isSet(fields) || ...); }, Event::kFields);
}

/// Combines the values of two ranks. `sum` is the value of the lower rank, and gets the result.
template <typename Value>
void combine(Value& sum, const Value& other) {
  if constexpr (std::is_arithmetic_v<Value>) {
    sum = std::max(sum, other);
  } else if (sum.empty()) {
    sum = other;
  }
}

// --- adding events --------------------------------------------------------------------------------------------------

template <typename Event>
void addTo(RankRecord& record, const Event& next) {
  const auto& row = std::get<SumRow<Event>>(kSumRows);
  Event sum = sumOf<Event>(record);
  visitFields<Event>(row.keys,
                     [&](const auto& field, const char*) { join(row.join, sum.*field.member, next.*field.member); });
  std::erase_if(record.sums, [](const TunerEvent& event) { return std::holds_alternative<Event>(event); });
  record.sums.push_back(std::move(sum));
}

void addTo(RankRecord& record, const CaptureFinished& event) { record.capture = {"", event.foregroundSeconds}; }
void addTo(RankRecord& record, const CaptureFailed& event) { record.capture = event; }
void addTo(RankRecord& record, const CaptureGrew&) { record.hasGrown = true; }
void addTo(RankRecord& record, const ArmAdded& event) { record.newArms.push_back(event.arm); }

void addTo(RankRecord& record, const ArmChanged& event) {
  const auto [entry, isNew] = record.arms.try_emplace(event.arm, event);
  if (isNew) return;
  ArmChanged& sum = entry->second;
  sum.foregroundSeconds += event.foregroundSeconds;
  sum.backgroundSeconds += event.backgroundSeconds;
  if (isDead(sum.state)) return;
  sum.state = event.state;
  sum.reason = event.reason;
}

void addTo(RankRecord& record, const StepFinished& event) {
  if (!record.step) return void(record.step = event);
  StepFinished& sum = *record.step;
  sum.disturbed = sum.disturbed || event.disturbed || sum.arm != event.arm;
  sum.arm = event.arm;
  sum.seconds += event.seconds;
  sum.shape += "+" + event.shape;
  sum.peakBytes = std::max(sum.peakBytes, event.peakBytes);
}

// --- text -----------------------------------------------------------------------------------------------------------

/// Reads a number, a bool or a text. Throws Json::exception for another kind of value, and for a fraction in the place
/// of a whole number, which might not fit.
template <typename Value>
void read(const Json& json, Value& value) {
  if constexpr (std::is_integral_v<Value> && !std::is_same_v<Value, bool>) {
    if (!json.is_number_integer()) throw Json::type_error::create(302, "it must be a whole number", &json);
  }
  json.get_to(value);
}

template <typename Event>
Event toEvent(const Json& json, const Keys<Event>& keys) {
  Event event;
  visitFields<Event>(keys, [&](const auto& field, const char* key) { read(json.at(key), event.*field.member); });
  return event;
}

template <typename Event>
void write(const Event& event, const Keys<Event>& keys, Json& json) {
  visitFields<Event>(keys, [&](const auto& field, const char* key) { json[key] = event.*field.member; });
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

Json toJson(const ArmChanged& event) {
  return {{"arm", event.arm},
          {"state", toString(event.state)},
          {"reason", event.reason},
          {"background", event.backgroundSeconds},
          {"foreground", event.foregroundSeconds}};
}

StatusOr<ArmChanged> toArmChanged(const Json& json) {
  AG_ASSIGN_OR_RETURN(const ArmState state, parseArmState(json.at("state").get<std::string>()));
  return ArmChanged{json.at("arm").get<std::string>(), state, json.at("reason").get<std::string>(),
                    json.at("background").get<double>(), json.at("foreground").get<double>()};
}

StatusOr<RankRecord> toRecord(const Json& json) {
  RankRecord record;
  read(json.at("digest"), record.digest);
  read(json.at("carried"), record.hasCarriedOut);
  read(json.at("leaving"), record.leaving);
  read(json.at("grown"), record.hasGrown);
  visitRows([&]<typename Row>(const Row& row) { record.sums.push_back(toEvent<typename Row::Event>(json, row.keys)); });
  if (const auto capture = json.find("capture"); capture != json.end()) {
    record.capture = toEvent<CaptureFailed>(*capture, kCaptureKeys);
  }
  if (const auto step = json.find("step"); step != json.end()) record.step = toEvent<StepFinished>(*step, kStepKeys);
  for (const Json& arm : json.at("new_arms")) record.newArms.push_back(toArmSpec(arm));
  for (const Json& entry : json.at("arms")) {
    AG_ASSIGN_OR_RETURN(ArmChanged event, toArmChanged(entry));
    std::string name = event.arm;
    record.arms.emplace(std::move(name), std::move(event));
  }
  return record;
}

}  // namespace

void RankRecord::add(const TunerEvent& event) {
  std::visit([this](const auto& alternative) { addTo(*this, alternative); }, event);
}

BudgetShared RankRecord::searches() const { return sumOf<BudgetShared>(*this); }

std::string RankRecord::toText() const {
  Json json = {{"digest", digest}, {"carried", hasCarriedOut}, {"leaving", leaving}, {"grown", hasGrown}};
  visitRows([&]<typename Row>(const Row& row) { write(sumOf<typename Row::Event>(*this), row.keys, json); });
  if (capture) write(*capture, kCaptureKeys, json["capture"]);
  if (step) write(*step, kStepKeys, json["step"]);
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

std::vector<TunerEvent> combineSums(const std::vector<RankRecord>& records) {
  std::vector<TunerEvent> events;
  visitRows([&]<typename Row>(const Row& row) {
    auto sum = sumOf<typename Row::Event>(records.front());
    for (const RankRecord& record : records) {
      const auto other = sumOf<typename Row::Event>(record);
      visitFields<typename Row::Event>(
          row.keys, [&](const auto& field, const char*) { combine(sum.*field.member, other.*field.member); });
    }
    constexpr bool kIsState = std::is_same_v<typename Row::Event, BudgetShared>;  // a state is kept after a sync
    if (kIsState || hasContent(sum)) events.push_back(std::move(sum));
  });
  return events;
}

}  // namespace agspeed::runtime::tune
