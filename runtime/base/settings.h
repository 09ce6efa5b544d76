// SPDX-License-Identifier: Apache-2.0
// Settings: what users choose and C++ reads, one row each in settings.toml, from which settings.def is generated.
//
// In a Python process the Python side resolves all settings (keywords, environment, agspeed.toml) and hands C++ its
// part through configureSettings() before anything reads them. Where nobody does, C++ reads the environment by the same
// rows, once, on first use. Values are immutable from the first read on, so any thread may read them. This is the only
// place that looks at the environment.
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
  /// By name of a setting that somebody set: the environment variable, or file and line.
  std::map<std::string, std::string> origins;
};

using SettingValue = std::variant<bool, int64_t, std::string>;
/// By name, such as peer_timeout_ms.
using SettingValues = std::map<std::string, SettingValue>;
/// Variables by name.
using Environment = std::map<std::string, std::string>;

/// What is wrong with a variable, in one sentence without the value of a secret or of an unknown variable.
struct SettingsProblem {
  std::string sentence;
  bool isRefused = false;  ///< no default may replace the value: nothing that needs the settings may start
};

/// Reads all rows. A malformed value keeps its default and becomes a problem; so does each unknown variable with our
/// prefix. An empty variable counts as unset.
Settings readSettings(const Environment& environment, std::vector<SettingsProblem>& problems);

/// Settings that are settled by their first reader. Thread-safe.
class SettingsStore {
 public:
  /// `readEnvironment` is called once, unless values are handed over first.
  explicit SettingsStore(std::function<Environment()> readEnvironment) : readEnvironment_(std::move(readEnvironment)) {}

  /// The same object each time. Where the environment is read, what is wrong with it is said on stderr.
  const Settings& get();
  /// As configureSettings().
  Status configure(const SettingValues& values, const std::map<std::string, std::string>& origins);
  /// As checkSettings().
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

/// Hands over values and their origins; settings that are not named stay as they are. Nothing changes when it fails: on
/// a name or a type that no row has, and on a value that differs from what settings() has given out already.
Status configureSettings(const SettingValues& values, const std::map<std::string, std::string>& origins);

/// Why nothing that needs the settings may start, in one sentence: a malformed value that no default may replace or,
/// with AGSPEED_STRICT, anything else that is wrong with the environment.
Status checkSettings();

}  // namespace agspeed
