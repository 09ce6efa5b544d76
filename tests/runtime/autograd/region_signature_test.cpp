// SPDX-License-Identifier: Apache-2.0
#include "runtime/autograd/region_signature.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace agspeed::runtime::autograd {
namespace {

using ::testing::HasSubstr;

// Three inputs, the last of which is mutated. Outputs: a computed one, the second input, and a view of the second
// input.
RegionSignature valid() {
  RegionSignature signature;
  signature.name = "test";
  signature.requiresGrad = {true, true, false};
  signature.mutatedInputs = {2};
  signature.numOutputs = 3;
  signature.outputsAsInputs = {-1, 1, -1};
  signature.outputViews = {-1, -1, 1};
  signature.tangents = {0};
  signature.tangentLayouts = {{1, 0}};
  signature.gradientSources = {{0}, {}, {}};
  signature.numSavedTensors = 2;
  signature.numSavedSymints = 1;
  signature.overwrittenSaved = {1};
  return signature;
}

TEST(RegionSignature, AConsistentOneIsAcceptedAndKnowsItsParts) {
  const RegionSignature signature = valid();
  EXPECT_TRUE(verify(signature).isOk()) << verify(signature).message();
  EXPECT_EQ(signature.firstOutput(), 1u);
  EXPECT_EQ(signature.firstSavedTensor(), 4u);
  EXPECT_EQ(signature.firstSavedSymint(), 6u);
  EXPECT_EQ(signature.numForwardOutputs(), 7u);
  EXPECT_EQ(signature.numBackwardInputs(), 4u);
  EXPECT_FALSE(signature.isMadeFromInput(0));
  EXPECT_TRUE(signature.isMadeFromInput(1));
  EXPECT_TRUE(signature.isMadeFromInput(2));
}

struct Contradiction {
  const char* name;
  std::function<void(RegionSignature&)> change;
  StatusCode code;
  const char* message;
};

class RegionSignatureContradiction : public ::testing::TestWithParam<Contradiction> {};

TEST_P(RegionSignatureContradiction, IsNamed) {
  RegionSignature signature = valid();
  GetParam().change(signature);
  const Status status = verify(signature);
  EXPECT_EQ(status.code(), GetParam().code);
  EXPECT_THAT(status.message(), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, RegionSignatureContradiction,
    ::testing::Values(Contradiction{"TangentOutOfRange", [](auto& s) { s.tangents = {3}; },
                                    StatusCode::kInvalidArgument, "tangents names number 3 of 3"},
                      Contradiction{"MutatedInputOutOfRange", [](auto& s) { s.mutatedInputs = {-1}; },
                                    StatusCode::kInvalidArgument, "mutated_inputs names number -1 of 3"},
                      Contradiction{"MutatedByCodeOutOfRange", [](auto& s) { s.mutatedByCode = {3}; },
                                    StatusCode::kInvalidArgument, "mutated_by_code names number 3 of 3"},
                      Contradiction{"OutputAsInputOutOfRange", [](auto& s) { s.outputsAsInputs[1] = 7; },
                                    StatusCode::kInvalidArgument, "outputs_as_inputs names number 7 of 3"},
                      Contradiction{"OutputViewOutOfRange", [](auto& s) { s.outputViews[2] = -2; },
                                    StatusCode::kInvalidArgument, "output_views names number -2 of 3"},
                      Contradiction{"OutputWithoutAnItem", [](auto& s) { s.outputViews.pop_back(); },
                                    StatusCode::kInvalidArgument, "output_views has 2 items for 3 outputs"},
                      Contradiction{"OverwrittenSavedOutOfRange", [](auto& s) { s.overwrittenSaved = {2}; },
                                    StatusCode::kInvalidArgument, "overwritten_saved names number 2 of 2"},
                      Contradiction{"LayoutForEachTangent", [](auto& s) { s.tangentLayouts.push_back({0}); },
                                    StatusCode::kInvalidArgument, "tangent_layouts has 2 items for 1 tangents"},
                      Contradiction{"LayoutNamesADimensionTwice", [](auto& s) { s.tangentLayouts = {{0, 0}}; },
                                    StatusCode::kInvalidArgument, "each dimension once"},
                      Contradiction{"SourcesForEachInput", [](auto& s) { s.gradientSources = {{0}}; },
                                    StatusCode::kInvalidArgument, "gradient_sources has 1 items for 3 inputs"},
                      Contradiction{"SourceOutOfRange", [](auto& s) { s.gradientSources[0] = {1}; },
                                    StatusCode::kInvalidArgument, "gradient_sources names number 1 of 1"},
                      Contradiction{"StageForEachInput", [](auto& s) { s.gradientStages = {0, 1}; },
                                    StatusCode::kInvalidArgument, "gradient_stages has 2 items for 3 inputs"},
                      Contradiction{"StageWithoutAGradient", [](auto& s) { s.gradientStages = {0, 2, 2}; },
                                    StatusCode::kInvalidArgument, "no gradient leaves after stage 1 of 3"},
                      Contradiction{"SavedStageOutOfRange", [](auto& s) { s.savedStages.assign(2, 1); },
                                    StatusCode::kInvalidArgument, "saved_stages names number 1 of 1"},
                      Contradiction{"TangentOfAnInput", [](auto& s) { s.tangents = {1}; }, StatusCode::kInvalidArgument,
                                    "output 1 has a tangent but comes from an input"},
                      Contradiction{"MutatedInputRequiresGrad", [](auto& s) { s.requiresGrad[2] = true; },
                                    StatusCode::kUnsupported, "input 2 is mutated and requires grad"},
                      Contradiction{"ViewOfAMutatedInput", [](auto& s) { s.outputViews[2] = 2; },
                                    StatusCode::kUnsupported, "input 2 is mutated and an output is a view of it"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace agspeed::runtime::autograd
