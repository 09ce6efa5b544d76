// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/settings.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <span>
#include <string_view>

namespace agspeed {
namespace {

constexpr std::string_view kPrefix = "AGSPEED_";
constexpr std::array<std::string_view, 4> kTrueWords = {"1", "true", "on", "yes"};
constexpr std::array<std::string_view, 4> kFalseWords = {"0", "false", "off", "no"};

/// All variables of agspeed.
constexpr const char* kVariables[] = {
#define AG_VARIABLE(name) name,
#include "runtime/base/settings.def"
};

/// The values that a row allows. A rule without entries for the row's type allows everything.
struct Rule {
  std::vector<std::string_view> choices;
  int64_t least = std::numeric_limits<int64_t>::min();
  int64_t most = std::numeric_limits<int64_t>::max();
};

Rule anything() { return {}; }
Rule oneOf(std::initializer_list<std::string_view> choices) { return {.choices = choices}; }
Rule between(int64_t least, int64_t most) { return {.choices = {}, .least = least, .most = most}; }

enum class Malformed { kDefault, kRefused };

/// The columns of a row that are needed to read it.
struct Row {
  const char* name;
  Rule rule;
  const char* expects;
  Malformed malformed;
  std::vector<const char*> variables;
};

template <typename Range>
bool contains(const Range& range, std::string_view word) {
  return std::find(range.begin(), range.end(), word) != range.end();
}

std::string trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\f\v";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin));
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// --- parsing a text: false, without changing the value, if it is malformed

bool parse(const std::string& text, const Rule&, bool& value) {
  const std::string word = lower(text);
  if (!contains(kTrueWords, word) && !contains(kFalseWords, word)) return false;
  value = contains(kTrueWords, word);
  return true;
}

bool parse(const std::string& text, const Rule& rule, int64_t& value) {
  int64_t parsed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  if (parsed < rule.least || parsed > rule.most) return false;
  value = parsed;
  return true;
}

bool parse(const std::string& text, const Rule& rule, std::string& value) {
  std::string word = rule.choices.empty() ? text : lower(text);
  if (!rule.choices.empty() && !contains(rule.choices, word)) return false;
  value = std::move(word);
  return true;
}

// --- the environment

template <typename T>
void readSetting(const Environment& environment, const Row& row, T& value, Settings& result,
                 std::vector<SettingsProblem>& problems) {
  for (const char* variable : row.variables) {
    const auto found = environment.find(variable);
    const std::string text = found == environment.end() ? "" : trimmed(found->second);
    if (text.empty()) continue;
    if (parse(text, row.rule, value)) {
      result.origins[row.name] = variable;
    } else {
      const bool isRefused = row.malformed == Malformed::kRefused;
      problems.push_back({formatText("{}=\"{}\" is not valid: it must be {}{}", variable, text, row.expects,
                                     isRefused ? "" : "; using the default"),
                          isRefused});
    }
    return;
  }
}

/// The number of characters to insert, remove or replace to turn one text into the other.
size_t editDistance(std::string_view from, std::string_view to) {
  std::vector<size_t> row(to.size() + 1);  // Invariant: row[j] is the distance of from[0, i) and to[0, j)
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= from.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= to.size(); ++j) {
      const size_t replaced = diagonal + (from[i - 1] == to[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row.back();
}

/// " (did you mean AGSPEED_MODE?)", or empty if no name is close.
std::string nearest(std::string_view variable) {
  const auto distance = [&](std::string_view name) { return editDistance(variable, name); };
  const char* best = *std::min_element(std::begin(kVariables), std::end(kVariables),
                                       [&](auto left, auto right) { return distance(left) < distance(right); });
  const size_t length = variable.size() - kPrefix.size();
  return distance(best) * 2 <= length ? formatText(" (did you mean {}?)", best) : "";
}

Environment processEnvironment() {
  Environment found;
  for (const char* name : kVariables) {
    if (const char* text = std::getenv(name)) found[name] = text;
  }
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view name = std::string_view(*entry).substr(0, std::string_view(*entry).find('='));
    if (name.starts_with(kPrefix)) found.emplace(name, "");  // the value of an unknown variable is not kept
  }
  return found;
}

SettingsStore& store() {
  static SettingsStore instance(&processEnvironment);
  return instance;
}

// --- values from configureSettings()

template <typename T>
Status assign(const char* name, const SettingValues& values, T& value) {
  const auto given = values.find(name);
  if (given == values.end()) return {};
  const T* typed = std::get_if<T>(&given->second);
  if (typed == nullptr) return invalidArgument("the setting {} was handed over as a value of a wrong type", name);
  value = *typed;
  return {};
}

Status checkKnown(const SettingValues& values) {
  const std::initializer_list<std::string_view> known = {
#define AG_SETTING(member, type, defaultValue, name, ...) name,
#include "runtime/base/settings.def"
  };
  for (const auto& [name, value] : values) {
    if (!contains(known, name)) return invalidArgument("C++ reads no setting called {}", name);
  }
  return {};
}

/// The name of a setting that differs; nullptr if there is none.
const char* firstDifference(const Settings& left, const Settings& right) {
#define AG_SETTING(member, type, defaultValue, name, ...) \
  if (left.member != right.member) return name;
#include "runtime/base/settings.def"
  return nullptr;
}

}  // namespace

Settings readSettings(const Environment& environment, std::vector<SettingsProblem>& problems) {
  Settings result;
#define AG_SETTING(member, type, defaultValue, name, rule, expects, malformed, ...) \
  readSetting(environment, {name, rule, expects, malformed, {__VA_ARGS__}}, result.member, result, problems);
#include "runtime/base/settings.def"
  for (const auto& [variable, text] : environment) {
    if (!variable.starts_with(kPrefix) || contains(std::span(kVariables), variable)) continue;
    problems.push_back({formatText("{} is not a setting{}; it is ignored", variable, nearest(variable))});
  }
  return result;
}

const Settings& SettingsStore::get() {
  const std::lock_guard lock(mutex_);
  return settle();
}

const Settings& SettingsStore::settle() {
  if (!isSettled_ && !isConfigured_) {
    values_ = readSettings(readEnvironment_(), problems_);
    // Not through log.h, which reads its level from the settings.
    for (const SettingsProblem& each : problems_) std::fprintf(stderr, "agspeed: %s\n", each.sentence.c_str());
  }
  isSettled_ = true;
  return values_;
}

Status SettingsStore::configure(const SettingValues& values, const std::map<std::string, std::string>& origins) {
  const std::lock_guard lock(mutex_);
  AG_RETURN_IF_ERROR(checkKnown(values));
  Settings changed = values_;
#define AG_SETTING(member, type, defaultValue, name, ...) AG_RETURN_IF_ERROR(assign(name, values, changed.member));
#include "runtime/base/settings.def"
  if (isSettled_) {
    const char* name = firstDifference(values_, changed);
    if (name == nullptr) return {};
    return invalidArgument(
        "the setting {} has another value now than when agspeed first read it in this process: set it before agspeed "
        "is used, or start a new process",
        name);
  }
  changed.origins = origins;
  values_ = std::move(changed);
  isConfigured_ = true;
  return {};
}

Status SettingsStore::check() {
  const std::lock_guard lock(mutex_);
  const bool isStrict = settle().strict;
  for (const SettingsProblem& each : problems_) {
    if (isStrict || each.isRefused) return invalidArgument(each.sentence);
  }
  return {};
}

const Settings& settings() { return store().get(); }

Status configureSettings(const SettingValues& values, const std::map<std::string, std::string>& origins) {
  return store().configure(values, origins);
}

Status checkSettings() { return store().check(); }

}  // namespace agspeed
