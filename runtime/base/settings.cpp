// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/settings.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <cstdlib>

namespace agspeed {
namespace {

constexpr std::array<std::string_view, 4> kTrueWords = {"1", "true", "on", "yes"};
constexpr std::array<std::string_view, 4> kFalseWords = {"0", "false", "off", "no"};

template <typename T>
void readSetting(const EnvironmentLookup& lookup, const char* variable, T& value, std::vector<std::string>& problems) {
  std::optional<std::string> text = lookup(variable);
  if (text && !parseSetting(*text, value)) {
    problems.push_back(std::string(variable) + "=\"" + *text + "\" is not a valid value; using the default");
  }
}

std::optional<std::string> fromEnvironment(const char* variable) {
  const char* text = std::getenv(variable);
  return text ? std::optional<std::string>(text) : std::nullopt;
}

Settings readProcessSettings() {
  std::vector<std::string> problems;
  Settings result = readSettings(fromEnvironment, problems);
  // Not through log.h: the log asks for its level here.
  for (const std::string& problem : problems) std::fprintf(stderr, "agspeed: %s\n", problem.c_str());
  return result;
}

}  // namespace

const Settings& settings() {
  static const Settings instance = readProcessSettings();
  return instance;
}

Settings readSettings(const EnvironmentLookup& lookup, std::vector<std::string>& problems) {
  Settings result;
#define AG_SETTING(member, type, defaultValue, variable, documentation) \
  readSetting(lookup, variable, result.member, problems);
#include "runtime/base/settings.def"
#undef AG_SETTING
  return result;
}

bool parseSetting(std::string_view text, bool& value) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  auto isIn = [&](const auto& words) { return std::find(words.begin(), words.end(), lower) != words.end(); };
  if (!isIn(kTrueWords) && !isIn(kFalseWords)) return false;
  value = isIn(kTrueWords);
  return true;
}

bool parseSetting(std::string_view text, int64_t& value) {
  int64_t parsed = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  value = parsed;
  return true;
}

bool parseSetting(std::string_view text, std::string& value) {
  value = text;
  return true;
}

}  // namespace agspeed
