// SPDX-License-Identifier: Apache-2.0
// The graphs that the importer refuses, and its error texts.
#include "compiler/import/importer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace agspeed::compiler {
namespace {

using ::testing::HasSubstr;

struct Refused {
  const char* name;
  const char* json;
  StatusCode code;
  const char* message;
};

class Importer : public ::testing::TestWithParam<Refused> {};

TEST_P(Importer, RefusesWithASentence) {
  Status status = importGraphSpec(GetParam().json).status();
  EXPECT_EQ(status.code(), GetParam().code);
  EXPECT_THAT(status.message(), HasSubstr(GetParam().message));
}

constexpr const char* kUnknownRef = R"({"version":1,"nodes":[
  {"name":"y","op":"call","target":"aten.mm.default","args":[{"ref":"x"}],"type":{"dtype":"f32","shape":[2]}}]})";
constexpr const char* kUnbacked =
    R"({"version":1,"nodes":[{"name":"x","op":"input","type":{"dtype":"f32","shape":["u0"]}}]})";
constexpr const char* kAttr = R"({"version":1,"nodes":[{"name":"c","op":"attr","type":null}]})";
constexpr const char* kFunction =
    R"({"version":1,"nodes":[{"name":"f","op":"call","target":"torch.nn.functional.linear","type":null}]})";
constexpr const char* kGetItem = R"({"version":1,"nodes":[
  {"name":"x","op":"input","type":{"dtype":"f32","shape":[2]}},
  {"name":"i","op":"call","target":"operator.getitem","args":[{"ref":"x"},3],"type":{"dtype":"f32","shape":[2]}}]})";
constexpr const char* kFloatArgument = R"({"version":1,"symbols":[{"name":"s0","hint":4}],"nodes":[
  {"name":"x","op":"input","type":{"dtype":"f32","shape":["s0"]}},
  {"name":"f","op":"call","target":"torch.sym_float","args":[{"sym":"s0"}]},
  {"name":"y","op":"call","target":"aten.renorm.default","args":[{"ref":"x"},{"ref":"f"},0,1.0],
   "type":{"dtype":"f32","shape":["s0"]}}]})";

INSTANTIATE_TEST_SUITE_P(
    Specs, Importer,
    ::testing::Values(Refused{"not_json", "{", StatusCode::kInvalidArgument, "malformed GraphSpec"},
                      Refused{"no_nodes", "{}", StatusCode::kInvalidArgument, "list \"nodes\""},
                      Refused{"version", R"({"version":2,"nodes":[]})", StatusCode::kInvalidArgument, "version 2"},
                      Refused{"unknown_ref", kUnknownRef, StatusCode::kInvalidArgument,
                              "\"x\", which no earlier node defines"},
                      Refused{"unbacked", kUnbacked, StatusCode::kUnsupported, "u0"},
                      Refused{"attr", kAttr, StatusCode::kUnsupported, "constant tensors"},
                      Refused{"float_argument", kFloatArgument, StatusCode::kUnsupported, "a number made from sizes"},
                      Refused{"function", kFunction, StatusCode::kUnsupported, "not an operator"},
                      Refused{"getitem", kGetItem, StatusCode::kInvalidArgument, "item 3 of a tuple of 1"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace agspeed::compiler
