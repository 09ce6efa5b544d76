// SPDX-License-Identifier: Apache-2.0
// The backward of a Region's call, compared with torch's own autograd.
#include "runtime/autograd/region_node.h"

#include <gmock/gmock.h>

#include <thread>

#include "tests/runtime/autograd/regions.h"

namespace agspeed::runtime::autograd {
namespace {

using ::testing::HasSubstr;
using torch::autograd::grad;

// y = sin(x), z = cos(x) with x saved; the gradient sums both tangents.
std::shared_ptr<const Region> wavesRegion(std::vector<std::vector<int32_t>> gradientSources = {}) {
  RegionSignature signature = plainSignature(1, 2, 1);
  signature.gradientSources = std::move(gradientSources);
  const auto forward = [](Arguments inputs) -> StatusOr<Arguments> {
    return Arguments{at::sin(tensor(inputs[0])), at::cos(tensor(inputs[0])), inputs[0]};
  };
  const auto backward = [](Arguments inputs) -> StatusOr<Arguments> {
    const at::Tensor& x = tensor(inputs[0]);
    return Arguments{tensor(inputs[1]) * at::cos(x) - tensor(inputs[2]) * at::sin(x)};
  };
  return makeRegion(forward, backward, signature);
}

// y = x * x with 2x saved; the backward multiplies the tangent into the saved tensor's own memory.
std::shared_ptr<const Region> squareRegion() {
  RegionSignature signature = plainSignature(1, 1, 1);
  signature.overwrittenSaved = {0};
  const auto forward = [](Arguments inputs) -> StatusOr<Arguments> {
    return Arguments{tensor(inputs[0]).square(), tensor(inputs[0]) * 2};
  };
  const auto backward = [](Arguments inputs) -> StatusOr<Arguments> {
    return Arguments{tensor(inputs[0]).mul_(tensor(inputs[1]))};
  };
  return makeRegion(forward, backward, signature);
}

// y = 2 * x; the backward is `backward`.
std::shared_ptr<const Region> doubledRegion(FunctionCode::Direction backward, RegionSignature signature) {
  const auto forward = [](Arguments inputs) -> StatusOr<Arguments> { return Arguments{tensor(inputs[0]) * 2}; };
  return makeRegion(forward, std::move(backward), std::move(signature));
}

TEST(RegionNode, GradientsEqualTorchs) {
  const auto region = sineProductRegion();
  const at::Tensor x = leaf({3, 4}), w = leaf({3, 4});
  const Tensors ours = grad({run(*region, {x, w}).square().sum()}, {x, w});
  const Tensors theirs = grad({sineProduct(x, w).square().sum()}, {x, w});
  EXPECT_TRUE(at::allclose(ours[0], theirs[0]));
  EXPECT_TRUE(at::allclose(ours[1], theirs[1]));
}

TEST(RegionNode, GradientsFlowThroughTheHistoryOfInputs) {
  const auto region = sineProductRegion();
  const at::Tensor x = leaf({4});
  const Tensors ours = grad({run(*region, {x.exp(), x * 3}).sum()}, {x});
  const Tensors theirs = grad({sineProduct(x.exp(), x * 3).sum()}, {x});
  EXPECT_TRUE(at::allclose(ours[0], theirs[0]));
}

TEST(RegionNode, HooksOnInputsAndOutputsRunInTorchsOrder) {
  const auto region = sineProductRegion();
  const at::Tensor x = leaf({3}), w = leaf({3});
  std::vector<std::string> seen;
  x.register_hook([&](const at::Tensor& gradient) {
    seen.push_back("input");
    return gradient * 10;
  });
  const at::Tensor y = run(*region, {x, w});
  y.retain_grad();
  y.register_hook([&](const at::Tensor&) { seen.push_back("output"); });
  y.sum().backward();
  EXPECT_THAT(seen, ::testing::ElementsAre("output", "input"));
  EXPECT_TRUE(at::allclose(x.grad(), w.detach() * at::cos(x.detach()) * 10));
  EXPECT_TRUE(at::equal(y.grad(), at::ones({3}, at::kDouble)));
}

TEST(RegionNode, AnInputUsedTwiceGetsTheSum) {
  const auto region = sineProductRegion();
  const at::Tensor x = leaf({3});
  run(*region, {x, x}).sum().backward();
  EXPECT_TRUE(at::allclose(x.grad(), grad({sineProduct(x, x).sum()}, {x})[0]));
}

TEST(RegionNode, AModifiedSavedInputIsTorchsError) {
  const auto region = sineProductRegion();
  const at::Tensor x = leaf({3}), w = leaf({3});
  const at::Tensor y = run(*region, {x, w});
  {
    const at::NoGradGuard noGrad;
    w.add_(1);
  }
  EXPECT_THAT(errorOf([&] { y.sum().backward(); }), HasSubstr("modified by an inplace operation"));
}

TEST(RegionNode, ASavedOutputMakesNoCycleAndIsWatched) {
  const auto forward = [](Arguments inputs) -> StatusOr<Arguments> {
    const at::Tensor y = at::exp(tensor(inputs[0]));
    return Arguments{y, y};
  };
  const auto backward = [](Arguments inputs) -> StatusOr<Arguments> {
    return Arguments{tensor(inputs[0]) * tensor(inputs[1])};
  };
  const auto region = makeRegion(forward, backward, plainSignature(1, 1, 1));
  const at::Tensor x = leaf({3});
  at::Tensor y = run(*region, {x});
  EXPECT_TRUE(at::allclose(grad({y.sum()}, {x}, {}, /*retain_graph=*/true)[0], at::exp(x)));
  y.mul_(2);
  EXPECT_THAT(errorOf([&] { y.sum().backward(); }), HasSubstr("modified by an inplace operation"));
  const at::Tensor fresh = run(*region, {x});
  const std::weak_ptr<torch::autograd::Node> node = fresh.grad_fn();
  const_cast<at::Tensor&>(fresh).reset();
  EXPECT_TRUE(node.expired());
}

TEST(RegionNode, ARetainedGraphGivesTheSameGradientsAgainAndAReleasedOneTorchsError) {
  const auto region = squareRegion();
  const at::Tensor x = leaf({5}), twice = x.detach() * 2;
  const at::Tensor y = run(*region, {x});
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(at::equal(grad({y.sum()}, {x}, {}, /*retain_graph=*/true)[0], twice)) << "run " << i;
  }
  EXPECT_TRUE(at::equal(grad({y.sum()}, {x})[0], twice));
  EXPECT_THAT(errorOf([&] { grad({y.sum()}, {x}); }), HasSubstr("a second time"));
}

TEST(RegionNode, TheLastRunLetsTheCodeFreeSavedTensorsEarly) {
  std::vector<bool> isShared;
  const auto forward = [](Arguments inputs) -> StatusOr<Arguments> {
    return Arguments{tensor(inputs[0]) * 3, at::exp(tensor(inputs[0]))};
  };
  const auto backward = [&](Arguments inputs) -> StatusOr<Arguments> {
    isShared.push_back(tensor(inputs[0]).use_count() > 1);
    return Arguments{tensor(inputs[1]) * 3};
  };
  const auto region = makeRegion(forward, backward, plainSignature(1, 1, 1));
  const at::Tensor x = leaf({4}), y = run(*region, {x});
  grad({y.sum()}, {x}, {}, /*retain_graph=*/true);
  grad({y.sum()}, {x});
  EXPECT_THAT(isShared, ::testing::ElementsAre(true, false));
}

TEST(RegionNode, UndefinedTangentsCountAsZeros) {
  const auto region = wavesRegion();
  const at::Tensor x = leaf({3, 4});
  const auto outputs = region->forward({x});
  ASSERT_TRUE(outputs.isOk()) << outputs.status().message();
  EXPECT_TRUE(at::allclose(grad({tensor(outputs->at(1)).sum()}, {x})[0], -at::sin(x)));
}

TEST(RegionNode, GradientsOfUnreachedTangentsAloneAreUndefined) {
  const auto region = wavesRegion({{1}});
  const at::Tensor x = leaf({3});
  const auto outputs = region->forward({x});
  ASSERT_TRUE(outputs.isOk()) << outputs.status().message();
  const Tensors gradients = grad({tensor(outputs->at(0)).sum()}, {x}, {}, /*retain_graph=*/true,
                                 /*create_graph=*/false, /*allow_unused=*/true);
  EXPECT_FALSE(gradients[0].defined());
  EXPECT_TRUE(grad({tensor(outputs->at(1)).sum()}, {x})[0].defined());
}

TEST(RegionNode, GradientsThatTheCodeDoesNotComputeAreUndefined) {
  const auto region =
      doubledRegion([](Arguments) -> StatusOr<Arguments> { return Arguments{{}}; }, plainSignature(1, 1, 0));
  const at::Tensor x = leaf({3});
  run(*region, {x}).sum().backward();
  EXPECT_FALSE(x.grad().defined());
}

TEST(RegionNode, TangentsComeInTheLayoutThatWasTraced) {
  RegionSignature signature = plainSignature(1, 1, 0);
  signature.tangentLayouts = {{1, 0}};
  std::vector<std::vector<int64_t>> strides;
  const auto region = doubledRegion(
      [&](Arguments inputs) -> StatusOr<Arguments> {
        strides.push_back(tensor(inputs[0]).strides().vec());
        return Arguments{tensor(inputs[0]) * 2};
      },
      signature);
  const at::Tensor x = leaf({3, 4});
  const at::Tensor ones = at::ones({3, 4}, at::kDouble);
  for (const at::Tensor& tangent :
       {ones, at::ones({4, 3}, at::kDouble).t(), at::ones({}, at::kDouble).expand({3, 4})}) {
    EXPECT_TRUE(at::equal(grad({run(*region, {x})}, {x}, {tangent})[0], ones * 2));
  }
  EXPECT_THAT(strides, ::testing::Each(std::vector<int64_t>{1, 3}));
}

TEST(RegionNode, SymintsComeBeforeSavedTensorsAndTangents) {
  RegionSignature signature = plainSignature(1, 1, 1);
  signature.numSavedSymints = 1;
  const auto forward = [](Arguments inputs) -> StatusOr<Arguments> {
    return Arguments{tensor(inputs[0]).sum(), inputs[0], tensor(inputs[0]).size(0)};
  };
  const auto backward = [](Arguments inputs) -> StatusOr<Arguments> {
    EXPECT_EQ(tensor(inputs[1]).size(0), std::get<int64_t>(inputs[0]));
    return Arguments{tensor(inputs[2]).expand({std::get<int64_t>(inputs[0])})};
  };
  const auto region = makeRegion(forward, backward, signature);
  const at::Tensor x = leaf({6});
  EXPECT_TRUE(at::equal(grad({run(*region, {x})}, {x})[0], at::ones({6}, at::kDouble)));
}

TEST(RegionNode, AFailedBackwardNamesTheRegion) {
  const auto region = doubledRegion([](Arguments) -> StatusOr<Arguments> { return internalError("no memory"); },
                                    plainSignature(1, 1, 0));
  const at::Tensor x = leaf({3});
  EXPECT_THAT(errorOf([&] { run(*region, {x}).sum().backward(); }),
              HasSubstr("no memory (in the backward of region test; the gradients of this step are incomplete)"));
}

TEST(RegionNode, AFailedBackwardIsToldBeforeItsExceptionPasses) {
  const auto same = [](Arguments inputs) -> StatusOr<Arguments> { return Arguments{tensor(inputs[0]).clone()}; };
  const auto fail = [](Arguments) -> StatusOr<Arguments> { return internalError("no memory"); };
  const auto region = makeRegion(same, fail, plainSignature(1, 1, 0),
                                 [](const Arguments& inputs) { return Tensors{tensor(inputs[0]).clone()}; });
  const at::Tensor x = leaf({3});
  EXPECT_THAT(errorOf([&] { run(*region, {x}).sum().backward(); }), HasSubstr("no memory"));
  EXPECT_THAT(dynamic_cast<const FunctionReplay&>(*region->eager()).failures, testing::ElementsAre("no memory"));
}

TEST(RegionNode, AWrongNumberOfGradientsIsNamed) {
  const auto region =
      doubledRegion([](Arguments) -> StatusOr<Arguments> { return Arguments{}; }, plainSignature(1, 1, 0));
  const at::Tensor x = leaf({3});
  EXPECT_THAT(errorOf([&] { run(*region, {x}).sum().backward(); }),
              HasSubstr("the backward direction of region test returned 0 gradients instead of 1"));
}

TEST(RegionNode, OneGraphMayBeRunByThreadsInTurnAndAtOnce) {
  const auto region = squareRegion();
  const at::Tensor x = leaf({64}), y = run(*region, {x}).sum(), twice = x.detach() * 2;
  const auto work = [&] {
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(at::equal(grad({y}, {x}, {}, /*retain_graph=*/true)[0], twice));
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace agspeed::runtime::autograd
