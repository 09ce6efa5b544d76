// SPDX-License-Identifier: Apache-2.0
// Settings: options that users set and C++ reads. settings.toml has one row for each; settings.def is generated from
// it.
//
// In a Python process the Python side resolves all settings (keywords, environment, agspeed.toml). It passes C++ its
// part through configureSettings() before any code reads them. Without such a call C++ reads the environment by the
// same rows, once, on first use. Values do not change after the first read, so any thread may read them. No other code
// reads the environment.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/status.h"

namespace agspeed {

/// The values, one member per row, starting as the defaults.
struct Settings {
#define AG_SETTING(member, type, defaultValue, ...) type member = defaultValue;
#include "runtime/base/settings.def"
  /// By name of a setting that was set: the environment variable, or file and line.
  std::map<std::string, std::string> origins;
};

using SettingValue = std::variant<bool, int64_t, std::string>;
/// By name, such as peer_timeout_ms.
using SettingValues = std::map<std::string, SettingValue>;
/// Variables by name.
using Environment = std::map<std::string, std::string>;

/// An error in a variable, as one sentence. It does not contain the value of a secret or of an unknown variable.
struct SettingsProblem {
  std::string sentence;
  bool isRefused = false;  ///< no default may replace the value: code that needs the settings must not start
};

/// Reads all rows. A malformed value keeps its default and becomes a problem. An unknown variable with our prefix also
/// becomes a problem. An empty variable counts as unset.
Settings readSettings(const Environment& environment, std::vector<SettingsProblem>& problems);

/// Settings that become final at the first read. Thread-safe.
class SettingsStore {
 public:
  /// `readEnvironment` is called once, unless configure() is called first.
  explicit SettingsStore(std::function<Environment()> readEnvironment) : readEnvironment_(std::move(readEnvironment)) {}

  /// The same object each time. If it reads the environment, it prints problems to stderr.
  const Settings& get();
  /// See configureSettings().
  Status configure(const SettingValues& values, const std::map<std::string, std::string>& origins);
  /// See checkSettings().
  Status check();

 private:
  const Settings& settle();  // under mutex_

  const std::function<Environment()> readEnvironment_;
  std::mutex mutex_;
  bool isConfigured_ = false;
  bool isSettled_ = false;
  Settings values_;  ///< Invariant: unchanged once isSettled_
  std::vector<SettingsProblem> problems_;
};

/// The settings of this process.
const Settings& settings();

/// Sets values and their origins; other settings keep their values. Fails, and changes nothing, for a name or a type
/// that no row has, or for a value that differs from one that settings() has already returned.
Status configureSettings(const SettingValues& values, const std::map<std::string, std::string>& origins);

/// One sentence about why code that needs the settings must not start: a malformed value that no default may replace,
/// or, with AGSPEED_STRICT, any other problem of the environment. Ok if there is none.
Status checkSettings();

}  // namespace agspeed
