// SPDX-License-Identifier: Apache-2.0
// Settings: settings that the C++ side takes from the environment, one row each in settings.def. They are for people
// who debug agspeed; what users choose per model comes as options through Python.
//
// The environment is read once, on first use, and only in settings.cpp. The values are immutable after that, so any
// thread may read them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace agspeed {

/// The values, one member per row of settings.def, starting as the defaults.
struct Settings {
#define AG_SETTING(member, type, defaultValue, variable, documentation) type member = defaultValue;
#include "runtime/base/settings.def"
#undef AG_SETTING
};

/// Value of an environment variable, or nullopt when unset.
using EnvironmentLookup = std::function<std::optional<std::string>(const char* variable)>;

/// The process's settings. A malformed value keeps the default and is named once on stderr.
const Settings& settings();

/// Reads every setting through `lookup`; appends one sentence to `problems` per malformed value, which keeps its
/// default.
Settings readSettings(const EnvironmentLookup& lookup, std::vector<std::string>& problems);

/// Parses "1/true/on/yes" and "0/false/off/no" in any case. Returns: false, leaving `value`, for any other text.
bool parseSetting(std::string_view text, bool& value);
/// Parses a decimal integer. Returns: false, leaving `value`, for any other text or one out of range.
bool parseSetting(std::string_view text, int64_t& value);
/// Takes any text.
bool parseSetting(std::string_view text, std::string& value);

}  // namespace agspeed
