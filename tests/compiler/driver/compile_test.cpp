// SPDX-License-Identifier: Apache-2.0
// compile() turns GraphSpec text into an Executable, for every target.
#include "compiler/driver/compile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>

#include "backends/backend.h"

namespace agspeed::compiler {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

constexpr const char* kSpec = R"({"version": 1, "nodes": [
  {"name": "x", "op": "input", "type": {"dtype": "f32", "shape": [4, 8]}},
  {"name": "gelu", "op": "call", "target": "aten.gelu.default", "args": [{"ref": "x"}],
   "type": {"dtype": "f32", "shape": [4, 8]}},
  {"name": "mm", "op": "call", "target": "aten.mm.default", "args": [{"ref": "gelu"}, {"ref": "x"}],
   "type": {"dtype": "f32", "shape": [4, 8]}},
  {"name": "output", "op": "output", "args": [[{"ref": "mm"}]]}]})";

class CompileForTarget : public ::testing::TestWithParam<backends::Backend> {};

TEST_P(CompileForTarget, MakesOneExecutableOfAllEntries) {
  CompileOptions options;
  options.target = GetParam().name;
  if (GetParam().device != Device::Kind::kCpu) GTEST_SKIP() << "backends/nvptx_test.cpp runs it on a fake driver";
  auto executable = compile({{"forward", kSpec}, {"backward", kSpec}}, options);
  ASSERT_TRUE(executable.hasValue()) << executable.status().toString();
  EXPECT_EQ((*executable)->entries.size(), 2u);
  EXPECT_EQ((*executable)->kernels->numKernels(), 1u);
  EXPECT_EQ((*executable)->stats.numCompiledOperators, 2);
  EXPECT_EQ((*executable)->stats.numExternalOperators, 2);
}

INSTANTIATE_TEST_SUITE_P(Targets, CompileForTarget,
                         ::testing::ValuesIn(backends::backends().begin(), backends::backends().end()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Compile, HoldsTheLastInputsAsConstants) {
  CompileOptions options;
  options.target = "reference";
  constexpr const char* kProduct = R"({"version": 1, "nodes": [
    {"name": "x", "op": "input", "type": {"dtype": "f32", "shape": [2]}},
    {"name": "c", "op": "input", "type": {"dtype": "f32", "shape": [2]}},
    {"name": "mul", "op": "call", "target": "aten.mul.Tensor", "args": [{"ref": "x"}, {"ref": "c"}],
     "type": {"dtype": "f32", "shape": [2]}},
    {"name": "output", "op": "output", "args": [[{"ref": "mul"}]]}]})";
  auto executable = compile({{"forward", kProduct}}, options, {{"forward", {std::vector<std::byte>(8)}}});
  ASSERT_TRUE(executable.hasValue()) << executable.status().toString();
  EXPECT_EQ((*executable)->entries.at("forward").inputs.size(), 1u);
  ASSERT_EQ((*executable)->constants.size(), 1u);
  EXPECT_EQ((*executable)->constants[0].bytes.size(), 8u);
  const Status tooMany = compile({{"forward", kProduct}}, options, {{"forward", {{}, {}, {}}}}).status();
  EXPECT_EQ(tooMany.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(tooMany.message(), HasSubstr("it gets 3 constants, but has only 2 inputs"));
  const Status unknown = compile({{"forward", kProduct}}, options, {{"backward", {{}}}}).status();
  EXPECT_THAT(unknown.message(), HasSubstr("constants for entry \"backward\", which does not exist"));
}

TEST(Compile, NamesTheEntryAndTheNodeOfAnError) {
  CompileOptions options;
  options.target = "reference";
  Status status = compile({{"backward", R"({"version":1,"nodes":[{"name":"c","op":"attr"}]})"}}, options).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("entry \"backward\": GraphSpec node \"c\""));
}

TEST(Compile, RefusesAnUnknownTarget) {
  CompileOptions options;
  options.target = "abacus";
  EXPECT_EQ(compile({{"forward", kSpec}}, options).status().code(), StatusCode::kInvalidArgument);
}

TEST(Compile, RefusesATargetOfAnotherDevice) {
  CompileOptions options;
  options.target = "cpu";
  options.device = {Device::Kind::kCuda, 0};
  EXPECT_THAT(compile({{"forward", kSpec}}, options).status().message(),
              HasSubstr("the target \"cpu\" has no kernels for the device cuda:0"));
}

class CompileDumps : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.dumpDir = ::testing::TempDir() + "/agspeed-" + std::to_string(getpid());
    fs::remove_all(options_.dumpDir);
  }
  void TearDown() override { fs::remove_all(options_.dumpDir); }

  // Names of the files that compiling writes, with "*" in place of the kernel's symbol.
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& file : fs::directory_iterator(options_.dumpDir)) {
      std::string name = file.path().filename().string();
      names.push_back(name.starts_with("ag_kernel_") ? "*" + name.substr(name.find('.')) : name);
    }
    return names;
  }

  CompileOptions options_;
};

TEST_F(CompileDumps, ShowTheGraphAndTheKernelAfterEachPass) {
  ASSERT_TRUE(compile({{"forward", kSpec}}, options_).hasValue());
  EXPECT_THAT(files(), UnorderedElementsAre(
                           "forward-0-import.ag", "forward-1-dce.ag", "forward-2-cse.ag", "forward-3-join-slices.ag",
                           "forward-4-reorder-joins.ag", "forward-5-turn-images.ag", "forward-6-fuse-pointwise.ag",
                           "forward-7-plan-memory.ag", "forward-8-plan-releases.ag", "forward-timings.txt",
                           "*.0-emit.mlir", "*.1-expand-math.mlir", "*.2-math-to-libm.mlir", "*.3-lower-to-llvm.mlir",
                           "*.timings.txt", "*.ll", "*.s", "*.o"));
}

TEST_F(CompileDumps, AreForThisUserAlone) {
  ASSERT_TRUE(compile({{"forward", kSpec}}, options_).hasValue());
  EXPECT_EQ(fs::status(options_.dumpDir).permissions(), fs::perms::owner_all);
  for (const auto& file : fs::directory_iterator(options_.dumpDir)) {
    EXPECT_EQ(file.status().permissions(), fs::perms::owner_read | fs::perms::owner_write) << file.path();
  }
}

TEST_F(CompileDumps, ShowTheGradientStagesOfTheBackwardAlone) {
  options_.gradientStages.bytes = 1;
  ASSERT_TRUE(compile({{"backward", kSpec}, {"forward", kSpec}}, options_).hasValue());
  EXPECT_THAT(files(), Contains("backward-9-gradient-stages.ag"));
  EXPECT_THAT(files(), Not(Contains("forward-9-gradient-stages.ag")));
}

TEST_F(CompileDumps, LackGradientStagesThatAreDisabled) {
  options_.gradientStages.bytes = 1;
  options_.disabledPasses = {"gradient-stages"};
  ASSERT_TRUE(compile({{"backward", kSpec}}, options_).hasValue());
  EXPECT_THAT(files(), Not(Contains(HasSubstr("gradient-stages"))));
}

TEST_F(CompileDumps, LackThePassesThatAreDisabled) {
  options_.disabledPasses = {"cse", "expand-math"};
  ASSERT_TRUE(compile({{"forward", kSpec}}, options_).hasValue());
  EXPECT_THAT(files(), Contains("forward-5-fuse-pointwise.ag"));
  EXPECT_THAT(files(), Contains("*.1-math-to-libm.mlir"));
  EXPECT_THAT(files(), Not(Contains(AnyOf(HasSubstr("cse"), HasSubstr("expand-math")))));
}

TEST_F(CompileDumps, AreNotBegunWhenAPassCannotBeDisabled) {
  options_.disabledPasses = {"expand-math", "ag-expand-math"};
  Status status = compile({{"forward", kSpec}}, options_).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("no pass named \"ag-expand-math\""));
  EXPECT_FALSE(fs::exists(options_.dumpDir));
}

}  // namespace
}  // namespace agspeed::compiler
