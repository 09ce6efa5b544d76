// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <type_traits>

#include "runtime/base/settings.h"

namespace agspeed {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A row of the table, with texts that it accepts and refuses. The value is text, so that rows of all types fit.
struct Row {
  std::string name;
  std::vector<std::string> variables;
  std::string expects;
  std::string valid, shownValid, shownDefault;
  std::string malformed;  ///< empty if every text is valid
  std::function<std::string(const Settings&)> show;
  SettingValue value, otherType;
};

std::string shown(const std::string& value) { return value; }
std::string shown(bool value) { return value ? "true" : "false"; }
std::string shown(int64_t value) { return std::to_string(value); }

// Represents a rule of settings.def: a text that the rule accepts, and one that it refuses.
struct Texts {
  std::string valid, malformed;
};
Texts anything() { return {}; }
Texts oneOf(std::initializer_list<std::string> choices) { return {*(choices.end() - 1), "nothing-of-that-kind"}; }
Texts between(int64_t, int64_t most) { return {std::to_string(most), std::to_string(most + 1)}; }

template <typename T>
Row makeRow(std::string name, const Texts& texts, std::string expects, std::vector<std::string> variables,
            T Settings::* member) {
  const T defaultValue = Settings().*member;
  Row row;
  row.name = std::move(name);
  row.variables = std::move(variables);
  row.expects = std::move(expects);
  row.show = [member](const Settings& all) { return shown(all.*member); };
  row.shownDefault = shown(defaultValue);
  row.malformed = texts.malformed;
  if constexpr (std::is_same_v<T, bool>) {
    row.valid = defaultValue ? "Off" : "YES";
    row.malformed = "maybe";
    row.value = !defaultValue;
    row.otherType = "text";
  } else if constexpr (std::is_same_v<T, int64_t>) {
    row.valid = texts.valid;
    row.value = static_cast<int64_t>(std::stoll(texts.valid));
    row.otherType = true;
  } else {
    row.valid = texts.valid.empty() ? "0123456789abcdef" : texts.valid;
    row.value = row.valid;
    row.otherType = int64_t{1};
  }
  row.shownValid = std::visit([](const auto& value) { return shown(value); }, row.value);
  return row;
}

std::vector<Row> rows() {
  return {
#define AG_SETTING(member, type, defaultValue, name, rule, expects, malformed, ...) \
  makeRow(name, rule, expects, {__VA_ARGS__}, &Settings::member),
#include "runtime/base/settings.def"
  };
}

class EachSetting : public testing::TestWithParam<Row> {};

INSTANTIATE_TEST_SUITE_P(Table, EachSetting, testing::ValuesIn(rows()),
                         [](const auto& info) { return info.param.name; });

class EachCheckedSetting : public testing::TestWithParam<Row> {};

std::vector<Row> checkedRows() {
  std::vector<Row> result = rows();
  std::erase_if(result, [](const Row& row) { return row.malformed.empty(); });
  return result;
}

INSTANTIATE_TEST_SUITE_P(Table, EachCheckedSetting, testing::ValuesIn(checkedRows()),
                         [](const auto& info) { return info.param.name; });

Settings readQuietly(const Environment& environment) {
  std::vector<SettingsProblem> problems;
  Settings result = readSettings(environment, problems);
  EXPECT_THAT(problems, IsEmpty());
  return result;
}

std::vector<std::string> problemsOf(const Environment& environment) {
  std::vector<SettingsProblem> problems;
  readSettings(environment, problems);
  std::vector<std::string> sentences;
  for (const SettingsProblem& each : problems) sentences.push_back(each.sentence);
  return sentences;
}

TEST_P(EachSetting, HasItsDefaultWhenNothingIsSet) {
  const Settings read = readQuietly({});
  EXPECT_EQ(GetParam().show(read), GetParam().shownDefault);
  EXPECT_EQ(read.origins.count(GetParam().name), 0);
}

TEST_P(EachSetting, ComesFromEachOfItsVariables) {
  for (const std::string& variable : GetParam().variables) {
    const Settings read = readQuietly({{variable, "  " + GetParam().valid + "\n"}});
    EXPECT_EQ(GetParam().show(read), GetParam().shownValid) << variable;
    EXPECT_EQ(read.origins.at(GetParam().name), variable);
  }
}

TEST_P(EachSetting, TakesTheFirstVariableThatSaysSomething) {
  Environment environment;
  for (const std::string& variable : GetParam().variables) {
    environment.emplace(variable, GetParam().valid);
    EXPECT_EQ(readQuietly(environment).origins.at(GetParam().name), GetParam().variables.front());
  }
  environment[GetParam().variables.front()] = " ";
  const Settings read = readQuietly(environment);
  if (GetParam().variables.size() > 1) {
    EXPECT_EQ(read.origins.at(GetParam().name), GetParam().variables[1]);
  } else {
    EXPECT_EQ(GetParam().show(read), GetParam().shownDefault) << "an empty variable counts as unset";
  }
}

TEST_P(EachCheckedSetting, KeepsItsDefaultWhenMalformedAndSaysSo) {
  for (const std::string& variable : GetParam().variables) {
    std::vector<SettingsProblem> problems;
    const Settings read = readSettings({{variable, GetParam().malformed}}, problems);
    EXPECT_EQ(GetParam().show(read), GetParam().shownDefault);
    ASSERT_EQ(problems.size(), 1);
    EXPECT_THAT(problems[0].sentence, testing::StartsWith(variable + "=\"" + GetParam().malformed +
                                                          "\" is not valid: it must be " + GetParam().expects));
  }
}

TEST_P(EachSetting, IsHandedOverWithItsOrigin) {
  SettingsStore store([] { return Environment{{"AGSPEED_SHARED_MEMORY", "maybe"}}; });
  ASSERT_TRUE(store.configure({{GetParam().name, GetParam().value}}, {{GetParam().name, "agspeed.toml:3"}}).isOk());
  EXPECT_EQ(GetParam().show(store.get()), GetParam().shownValid);
  EXPECT_EQ(store.get().origins.at(GetParam().name), "agspeed.toml:3");
  EXPECT_TRUE(store.check().isOk()) << "the environment counts no more";
}

TEST_P(EachSetting, OfAWrongTypeIsRefusedWhole) {
  SettingsStore store([] { return Environment(); });
  SettingValues values = {{"debug", "trace"}, {"shared_memory", false}};
  values[GetParam().name] = GetParam().otherType;
  const Status status = store.configure(values, {});
  EXPECT_THAT(status.message(), HasSubstr("the setting " + GetParam().name));
  EXPECT_EQ(store.get().debug, "warn");
  EXPECT_TRUE(store.get().sharedMemory);
}

TEST_P(EachSetting, IsNotChangedOnceItWasRead) {
  SettingsStore store([] { return Environment(); });
  const Settings& read = store.get();
  const Status status = store.configure({{GetParam().name, GetParam().value}, {"job_key", "0123456789abcdef"}}, {});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("has another value now than when agspeed first read it"));
  EXPECT_THAT(status.message(), testing::Not(HasSubstr("0123456789abcdef")));
  EXPECT_EQ(GetParam().show(read), GetParam().shownDefault);
  EXPECT_EQ(read.jobKey, "") << "nothing half applied";
}

TEST(SettingsStore, TheSameValuesMayBeHandedOverAgain) {
  SettingsStore store([] { return Environment{{"AGSPEED_PEER_TIMEOUT_MS", "5000"}}; });
  EXPECT_EQ(store.get().peerTimeoutMs, 5000);
  EXPECT_TRUE(store.configure({{"peer_timeout_ms", int64_t{5000}}}, {}).isOk());
  EXPECT_FALSE(store.configure({{"peer_timeout_ms", int64_t{5001}}}, {}).isOk());
}

TEST(SettingsStore, AnUnknownNameIsRefusedWhole) {
  SettingsStore store([] { return Environment(); });
  const Status status = store.configure({{"debug", "trace"}, {"peer_timeout", int64_t{1}}}, {});
  EXPECT_THAT(status.message(), HasSubstr("no setting called peer_timeout"));
  EXPECT_EQ(store.get().debug, "warn");
}

TEST(SettingsStore, ReadsTheEnvironmentOnce) {
  int reads = 0;
  SettingsStore store([&] {
    ++reads;
    return Environment();
  });
  store.get();
  store.get();
  EXPECT_TRUE(store.check().isOk());
  EXPECT_EQ(reads, 1);
}

TEST(SettingsStore, SaysOnceWhatIsWrong) {
  SettingsStore store([] { return Environment{{"AGSPEED_PEER_TIMEOUT_MS", "soon"}}; });
  testing::internal::CaptureStderr();
  store.get();
  store.get();
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "agspeed: AGSPEED_PEER_TIMEOUT_MS=\"soon\" is not valid: it must be a whole number from 1 to 2147483647; "
            "using the default\n");
  EXPECT_TRUE(store.check().isOk()) << "the default does";
}

TEST(SettingsStore, NoDefaultReplacesAMalformedProtection) {
  SettingsStore store([] { return Environment{{"AGSPEED_COMM_MODE", "encrpyted"}}; });
  testing::internal::CaptureStderr();
  store.get();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::EndsWith("opportunistic\n"));
  EXPECT_THAT(store.check().message(), HasSubstr("AGSPEED_COMM_MODE=\"encrpyted\" is not valid"));
}

TEST(SettingsStore, UnderStrictWhatIsWrongIsAnError) {
  SettingsStore store([] { return Environment{{"AGSPEED_DEBUGG", "info"}, {"AGSPEED_STRICT", "1"}}; });
  testing::internal::CaptureStderr();
  store.get();
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "agspeed: AGSPEED_DEBUGG is not a setting (did you mean AGSPEED_DEBUG?); it is ignored\n");
  EXPECT_THAT(store.check().message(), HasSubstr("AGSPEED_DEBUGG is not a setting (did you mean AGSPEED_DEBUG?)"));
}

TEST(ReadSettings, UnknownVariablesWithOurPrefixAreNamedWithTheNearest) {
  EXPECT_THAT(
      problemsOf({{"AGSPEED_PEER_TIMEOUT", "1"}, {"NCCL_DEBUG", "INFO"}}),
      ElementsAre("AGSPEED_PEER_TIMEOUT is not a setting (did you mean AGSPEED_PEER_TIMEOUT_MS?); it is ignored"));
  EXPECT_THAT(problemsOf({{"AGSPEED_XQZ", "1"}}), ElementsAre("AGSPEED_XQZ is not a setting; it is ignored"));
}

TEST(ReadSettings, WhatPythonReadsAndWhatTestsUseIsKnown) {
  EXPECT_THAT(problemsOf({{"AGSPEED_MODE", "max"}, {"AGSPEED_BUILD_DIR", "/b"}}), IsEmpty());
}

TEST(ReadSettings, AMisspeltSecretIsNotShown) {
  EXPECT_THAT(problemsOf({{"AGSPEED_JOB_KYE", "0123456789abcdef"}}),
              ElementsAre("AGSPEED_JOB_KYE is not a setting (did you mean AGSPEED_JOB_KEY?); it is ignored"));
}

TEST(ReadSettings, IntegersAreWholeAndInRange) {
  for (const char* text : {"12x", "9223372036854775808", "1.5", "+1", "0", "-1", "2147483648"}) {
    EXPECT_EQ(problemsOf({{"AGSPEED_PEER_TIMEOUT_MS", text}}).size(), 1) << text;
  }
}

TEST(ReadSettings, FlagsAcceptTheUsualWordsOnly) {
  for (const char* text : {"1", "true", "On", "YES"})
    EXPECT_TRUE(readQuietly({{"AGSPEED_STRICT", text}}).strict) << text;
  for (const char* text : {"0", "False", "off", "no"}) {
    EXPECT_FALSE(readQuietly({{"AGSPEED_SHARED_MEMORY", text}}).sharedMemory) << text;
  }
  EXPECT_EQ(problemsOf({{"AGSPEED_STRICT", "2"}}).size(), 1);
}

}  // namespace
}  // namespace agspeed
