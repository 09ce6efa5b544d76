// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/arms/findings.h"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/base/format.h"
#include "runtime/base/json_depth.h"

namespace agspeed::runtime::tune {
namespace {

using Json = nlohmann::json;

constexpr int kFindingsVersion = 1;
constexpr size_t kMaxPairs = 1000;  ///< per arm; a tuner never writes more
constexpr double kNanoseconds = 1e9;
constexpr std::string_view kEarlier = "in an earlier run: ";

Json toJson(const std::vector<RunPair>& pairs) {
  Json json = Json::array();
  for (const RunPair& pair : pairs) {
    Json times = Json::array();
    for (const double seconds : {pair.reference, pair.arm, pair.referenceMean, pair.armMean}) {
      times.push_back(std::llround(seconds * kNanoseconds));
    }
    json.push_back(std::move(times));
  }
  return json;
}

StatusOr<RunPair> parsePair(const Json& json) {
  std::array<double, 4> seconds{};
  if (!json.is_array() || json.size() != seconds.size()) return invalidArgument("a pair is not four times");
  for (size_t i = 0; i < seconds.size(); ++i) {
    if (!json[i].is_number_integer() || json[i].get<int64_t>() <= 0) {
      return invalidArgument("a time of a pair is not a whole number above 0");
    }
    seconds[i] = static_cast<double>(json[i].get<int64_t>()) / kNanoseconds;
  }
  return RunPair{seconds[0], seconds[1], seconds[2], seconds[3]};
}

StatusOr<std::vector<RunPair>> parsePairs(const Json& json) {
  if (!json.is_array() || json.size() > kMaxPairs) {
    return invalidArgument("the pairs are not a list of at most {} entries", kMaxPairs);
  }
  std::vector<RunPair> pairs;
  for (const Json& entry : json) {
    AG_ASSIGN_OR_RETURN(const RunPair pair, parsePair(entry));
    pairs.push_back(pair);
  }
  return pairs;
}

std::string textMember(const Json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

StatusOr<ArmFindings> parseArm(const Json& json) {
  if (!json.is_object()) return invalidArgument("an arm is not an object");
  ArmFindings findings;
  findings.name = textMember(json, "name");
  if (findings.name.empty()) return invalidArgument("an arm has no name");
  findings.isLost = textMember(json, "verdict") == toString(Verdict::kLost);
  findings.reason = textMember(json, "reason");
  findings.beatenBy = textMember(json, "beaten_by");
  AG_ASSIGN_OR_RETURN(findings.pairs, parsePairs(json.value("pairs", Json::array())));
  const Json duel = json.value("duel", Json::object());
  if (!duel.is_object()) return invalidArgument("a duel is not an object");
  findings.duelAgainst = textMember(duel, "against");
  AG_ASSIGN_OR_RETURN(findings.duelPairs, parsePairs(duel.value("pairs", Json::array())));
  return findings;
}

std::vector<RunPair> asVector(const Comparison& comparison) {
  return {comparison.pairs().begin(), comparison.pairs().end()};
}

}  // namespace

ArmFindings findingsOf(const Arm& arm) {
  const bool isLost = arm.verdict == Verdict::kLost;
  std::string reason = isLost ? arm.reason : std::string();
  if (reason.starts_with(kEarlier)) reason.erase(0, kEarlier.size());
  return {arm.spec.name,     isLost, std::move(reason), arm.beatenBy, asVector(arm.versusEager), arm.duelAgainst,
          asVector(arm.duel)};
}

void restore(const ArmFindings& findings, Arm& arm) {
  arm.versusEager.addEarlier(findings.pairs);
  arm.duel.addEarlier(findings.duelPairs);
  arm.duelAgainst = findings.duelAgainst;
  if (!findings.isLost) return;
  arm.verdict = Verdict::kLost;
  arm.reason = std::string(kEarlier) + findings.reason;
  arm.beatenBy = findings.beatenBy;
}

std::string toText(const std::vector<ArmFindings>& findings) {
  Json arms = Json::array();
  for (const ArmFindings& arm : findings) {
    Json json = {{"name", arm.name},
                 {"verdict", toString(arm.isLost ? Verdict::kLost : Verdict::kOpen)},
                 {"reason", arm.reason},
                 {"beaten_by", arm.beatenBy},
                 {"pairs", toJson(arm.pairs)}};
    if (!arm.duelPairs.empty()) json["duel"] = {{"against", arm.duelAgainst}, {"pairs", toJson(arm.duelPairs)}};
    arms.push_back(std::move(json));
  }
  const Json json = {{"version", kFindingsVersion}, {"arms", std::move(arms)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

StatusOr<std::vector<ArmFindings>> parseFindings(std::string_view text) {
  const Json json = isNestedTooDeep(text) ? Json() : Json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("arms") || !json["arms"].is_array()) {
    return invalidArgument("earlier findings have no list of arms");
  }
  if (json.value("version", Json()) != kFindingsVersion) {
    return invalidArgument("earlier findings have another version: this agspeed reads version {}", kFindingsVersion);
  }
  std::vector<ArmFindings> found;
  for (const Json& entry : json["arms"]) {
    StatusOr<ArmFindings> arm = parseArm(entry);
    if (!arm.hasValue()) return arm.status().withContext("earlier findings: ");
    found.push_back(std::move(arm).value());
  }
  return found;
}

}  // namespace agspeed::runtime::tune
