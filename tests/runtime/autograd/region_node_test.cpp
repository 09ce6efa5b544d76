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

// y = x * x with 2x saved. The backward multiplies the tangent in the saved tensor's own memory.
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

// y = 2 * x, with the given backward.
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

TEST(RegionNode, HooksOfInputsRunOnceUnderCreateGraph) {
  const auto region = sineProductRegion();
  const at::Tensor x = leaf({3}), w = leaf({3});
  int numHooks = 0;
  for (const at::Tensor& input : {x, w}) input.register_hook([&](const at::Tensor&) { ++numHooks; });
  run(*region, {x, w}).sum().backward({}, std::nullopt, /*create_graph=*/true);
  EXPECT_EQ(numHooks, 2);
  x.mutable_grad().reset();
  w.mutable_grad().reset();
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
  const auto node = watch(fresh.grad_fn());
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
  ASSERT_TRUE(outputs.hasValue()) << outputs.status().message();
  EXPECT_TRUE(at::allclose(grad({tensor(outputs->at(1)).sum()}, {x})[0], -at::sin(x)));
}

TEST(RegionNode, GradientsOfUnreachedTangentsAloneAreUndefined) {
  const auto region = wavesRegion({{1}});
  const at::Tensor x = leaf({3});
  const auto outputs = region->forward({x});
  ASSERT_TRUE(outputs.hasValue()) << outputs.status().message();
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

TEST(RegionNode, AFailedBackwardIsReportedBeforeItsExceptionPasses) {
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

// --- stages ----------------------------------------------------------------------------------------------------------

// y = sin(x) * w. The backward returns the gradient of w first. Each stage takes one saved tensor, appends to `ran` and
// returns its gradient changed by `change`.
struct TwoStages {
  std::vector<int> ran;
  std::function<at::Tensor(int, at::Tensor)> change = [](int, at::Tensor gradient) { return gradient; };

  std::shared_ptr<const Region> region(FunctionReplay::Function replay = nullptr) {
    RegionSignature signature = plainSignature(2, 1, 2);
    signature.gradientStages = {1, 0};  // x, then w
    signature.savedStages = {0, 1};     // x, w
    auto tangent = std::make_shared<at::Tensor>();
    auto input = std::make_shared<at::Tensor>();
    const auto first = [this, tangent, input](Arguments inputs) -> StatusOr<Arguments> {
      ran.push_back(0);
      *input = tensor(inputs[0]);
      *tangent = tensor(inputs[1]);
      return Arguments{change(0, *tangent * at::sin(*input))};
    };
    const auto second = [this, tangent, input](Arguments inputs) -> StatusOr<Arguments> {
      ran.push_back(1);
      return Arguments{change(1, *tangent * tensor(inputs[0]) * at::cos(*input))};
    };
    return makeStagedRegion(sineProductForward, {first, second}, signature, std::move(replay));
  }
};

Tensors replaySineProduct(const Arguments& inputs) { return {sineProduct(tensor(inputs[0]), tensor(inputs[1]))}; }

TEST(RegionNodeStages, HooksOfAStageRunBeforeTheNextIsComputed) {
  TwoStages stages;
  const auto region = stages.region();
  const at::Tensor x = leaf({3}), w = leaf({3});
  w.register_hook([&](const at::Tensor&) { stages.ran.push_back(10); });
  x.register_hook([&](const at::Tensor&) { stages.ran.push_back(11); });
  run(*region, {x, w}).sum().backward();
  EXPECT_THAT(stages.ran, ::testing::ElementsAre(0, 10, 1, 11));
  const Tensors theirs = grad({sineProduct(x, w).sum()}, {x, w});
  EXPECT_TRUE(at::allclose(x.grad(), theirs[0]));
  EXPECT_TRUE(at::allclose(w.grad(), theirs[1]));
}

TEST(RegionNodeStages, ABackwardForEarlyGradientsAloneStopsThere) {
  TwoStages stages;
  const auto region = stages.region();
  const at::Tensor x = leaf({3}), w = leaf({3}), y = run(*region, {x, w}).sum();
  EXPECT_TRUE(at::allclose(grad({y}, {w}, {}, /*retain_graph=*/true)[0], at::sin(x)));
  EXPECT_THAT(stages.ran, ::testing::ElementsAre(0));
  EXPECT_TRUE(at::allclose(grad({y}, {x}, {}, /*retain_graph=*/true)[0], w * at::cos(x)));
  EXPECT_THAT(stages.ran, ::testing::ElementsAre(0, 0, 1));
}

TEST(RegionNodeStages, ARetainedGraphRunsAllStagesAgainAndAReleasedOneIsTorchsError) {
  TwoStages stages;
  const auto region = stages.region();
  const at::Tensor x = leaf({3}), w = leaf({3}), y = run(*region, {x, w}).sum();
  y.backward({}, /*retain_graph=*/true);
  y.backward();
  EXPECT_TRUE(at::allclose(w.grad(), at::sin(x) * 2));
  EXPECT_TRUE(at::allclose(x.grad(), w * at::cos(x) * 2));
  EXPECT_THAT(errorOf([&] { y.backward(); }), HasSubstr("a second time"));
}

TEST(RegionNodeStages, ALaterStageThatFailsIsReplayedForWhatHasNotLeft) {
  TwoStages stages;
  stages.change = [](int stage, at::Tensor gradient) -> at::Tensor {
    if (stage == 1) throw ReplaceableError("broken");
    return gradient * 10;  // so that a second delivery would show
  };
  const auto region = stages.region(replaySineProduct);
  const at::Tensor x = leaf({3}), w = leaf({3});
  int numHooks = 0;
  w.register_hook([&](const at::Tensor&) { ++numHooks; });
  run(*region, {x, w}).sum().backward();
  EXPECT_EQ(numHooks, 1);
  EXPECT_TRUE(at::allclose(w.grad(), at::sin(x) * 10));
  EXPECT_TRUE(at::allclose(x.grad(), w * at::cos(x)));
}

TEST(RegionNodeStages, ALaterStageThatFailsAfterItsInputsChangedPassesItsException) {
  TwoStages stages;
  stages.change = [](int stage, at::Tensor gradient) -> at::Tensor {
    if (stage == 1) throw ReplaceableError("broken");
    return gradient;
  };
  const auto region = stages.region(replaySineProduct);
  const at::Tensor x = leaf({3}), w = leaf({3});
  w.register_hook([&](const at::Tensor&) {
    const at::NoGradGuard noGrad;
    x.add_(1);
  });
  EXPECT_THROW(run(*region, {x, w}).sum().backward(), ReplaceableError);
}

TEST(RegionNodeStages, NothingStandsInOnceATangentHasLeftAsAGradient) {
  RegionSignature signature = plainSignature(2, 1, 0);
  signature.gradientStages = {1, 0};
  const auto forward = [](Arguments inputs) -> StatusOr<Arguments> {
    return Arguments{tensor(inputs[0]) + tensor(inputs[1])};
  };
  const auto first = [](Arguments inputs) -> StatusOr<Arguments> { return Arguments{tensor(inputs[0]).view({3})}; };
  const auto second = [](Arguments) -> StatusOr<Arguments> { throw ReplaceableError("broken"); };
  const auto region = makeStagedRegion(forward, {first, second}, signature, [](const Arguments& inputs) {
    return Tensors{tensor(inputs[0]) + tensor(inputs[1])};
  });
  const at::Tensor x = leaf({3}), w = leaf({3});
  EXPECT_THROW(run(*region, {x, w}).sum().backward(), ReplaceableError);
}

TEST(RegionNodeStages, CreateGraphIsReplayedOnceAndHandedOutByAllStages) {
  TwoStages stages;
  int numReplays = 0;
  const auto region = stages.region([&](const Arguments& inputs) {
    ++numReplays;
    return replaySineProduct(inputs);
  });
  const at::Tensor x = leaf({3}), w = leaf({3});
  const auto twice = [&](const at::Tensor& y) {
    const Tensors first = grad({y.sum()}, {x, w}, {}, true, /*create_graph=*/true);
    return grad({first[0].square().sum() + first[1].sum()}, {x, w});
  };
  const Tensors ours = twice(run(*region, {x, w})), theirs = twice(sineProduct(x, w));
  EXPECT_TRUE(at::allclose(ours[0], theirs[0]));
  EXPECT_TRUE(at::allclose(ours[1], theirs[1]));
  EXPECT_EQ(numReplays, 1);
  EXPECT_TRUE(stages.ran.empty());
}

TEST(RegionNodeStages, SavedTensorsAreReleasedStageByStage) {
  TwoStages stages;
  const auto region = stages.region();
  const at::Tensor x = leaf({3}), w = leaf({3});
  at::Tensor y = run(*region, {x.exp(), w * 2});
  const auto first = watch(y.grad_fn());
  w.register_hook([&](const at::Tensor&) {
    const auto node = first.lock();
    EXPECT_THAT(errorOf([&] { dynamic_cast<RegionNode&>(*node).apply({at::ones({3}, at::kDouble)}); }),
                HasSubstr("a second time"));
  });
  y.sum().backward();
  y.reset();
  EXPECT_TRUE(first.expired());
}

TEST(RegionNodeStages, ASavedOutputOfALaterStageMakesNoCycle) {
  RegionSignature signature = plainSignature(2, 1, 1);
  signature.gradientStages = {1, 0};
  signature.savedStages = {1};
  const auto forward = [](Arguments inputs) -> StatusOr<Arguments> {
    const at::Tensor y = at::exp(tensor(inputs[0])) + tensor(inputs[1]);
    return Arguments{y, y};
  };
  at::Tensor tangent;
  const auto first = [&](Arguments inputs) -> StatusOr<Arguments> {
    tangent = tensor(inputs[0]);
    return Arguments{tangent.clone()};
  };
  const auto second = [&](Arguments inputs) -> StatusOr<Arguments> { return Arguments{tangent * tensor(inputs[0])}; };
  const auto region = makeStagedRegion(forward, {first, second}, signature);
  const at::Tensor x = leaf({3}), w = leaf({3});
  at::Tensor y = run(*region, {x, w});
  EXPECT_TRUE(at::allclose(grad({y.sum()}, {x}, {}, /*retain_graph=*/true)[0], at::exp(x) + w));
  const auto node = watch(y.grad_fn());
  y.reset();
  EXPECT_TRUE(node.expired());
}

TEST(RegionNodeStages, AStageReachedWithoutTheOnesBeforeIsASentence) {
  TwoStages stages;
  const auto region = stages.region();
  const at::Tensor x = leaf({3}), w = leaf({3}), y = run(*region, {x, w});
  const auto later = y.grad_fn()->next_edge(1).function;
  EXPECT_THAT(errorOf([&] { (*later)({at::Tensor()}); }), HasSubstr("without the stages before it"));
}

}  // namespace
}  // namespace agspeed::runtime::autograd
