// SPDX-License-Identifier: Apache-2.0
// Effects of a Region's call on its inputs, its outputs and the random stream, and the calls that it refuses.
#include "runtime/autograd/region.h"

#include <gmock/gmock.h>
#include <torch/csrc/autograd/function.h>

#include <thread>

#include "runtime/aten/random_state.h"
#include "tests/runtime/autograd/regions.h"

namespace agspeed::runtime::autograd {
namespace {

using ::testing::HasSubstr;

StatusOr<Arguments> unreachable(Arguments) { return internalError("nothing may run"); }

// total += sum(x); y = 2 * x, with the old total saved.
std::shared_ptr<const Region> accumulatingRegion() {
  RegionSignature signature = plainSignature(2, 1, 1);
  signature.requiresGrad = {true, false};
  signature.mutatedInputs = {1};
  const auto forward = [](Arguments inputs) -> StatusOr<Arguments> {
    const at::Tensor &x = tensor(inputs[0]), &total = tensor(inputs[1]);
    return Arguments{total + x.sum(), x * 2, total};
  };
  const auto backward = [](Arguments inputs) -> StatusOr<Arguments> {
    return Arguments{tensor(inputs[1]) * 2 + tensor(inputs[0]), {}};
  };
  return makeRegion(forward, backward, signature);
}

TEST(Region, OutputsEqualTorchsAndHaveTheNodeAsTheirHistory) {
  const auto region = sineProductRegion();
  const at::Tensor x = leaf({3, 4}), w = leaf({3, 4});
  const at::Tensor y = run(*region, {x, w});
  EXPECT_TRUE(at::equal(y, sineProduct(x, w)));
  ASSERT_NE(y.grad_fn(), nullptr);
  EXPECT_EQ(y.grad_fn()->name(), "AgspeedRegionBackward");
}

TEST(Region, NoNodeIsMadeWhereNoGradientIsWanted) {
  const auto region = sineProductRegion();
  const at::Tensor x = leaf({3}), w = leaf({3});
  EXPECT_FALSE(run(*region, {x.detach(), w.detach()}).requires_grad());
  {
    const at::NoGradGuard noGrad;
    EXPECT_FALSE(run(*region, {x, w}).requires_grad());
  }
  {
    const c10::InferenceMode inference;
    EXPECT_TRUE(run(*region, {x, w}).is_inference());
  }
  EXPECT_TRUE(run(*region, {x, w}).requires_grad());
}

TEST(Region, InputsThatWereTracedWithoutGradGetNoGradient) {
  RegionSignature signature = plainSignature(2, 1, 2);
  signature.requiresGrad = {true, false};
  const auto region = makeRegion(sineProductForward, sineProductBackward, signature);
  const at::Tensor x = leaf({3}), w = leaf({3}).detach();
  run(*region, {x, w}).sum().backward();
  EXPECT_TRUE(at::allclose(x.grad(), at::cos(x) * w));
  EXPECT_FALSE(w.grad().defined());
  EXPECT_EQ(refusal(*region, {x, leaf({3})}), "an input requires grad that did not when traced");
}

TEST(Region, CallsThatWereNotTracedAreRefusedWithTheReason) {
  const auto region = makeRegion(unreachable, unreachable, plainSignature(2, 1, 2));
  const at::Tensor x = leaf({3}), w = leaf({3});
  EXPECT_EQ(refusal(*region, {x}), "the number of inputs differs");
  EXPECT_EQ(refusal(*region, {x, w.detach()}), "an input does not require grad that did when traced");
  EXPECT_EQ(refusal(*region, {x, at::Tensor()}), "an input is not a plain tensor");
  EXPECT_EQ(refusal(*region, {x, w.detach().to_sparse()}), "an input is not a plain tensor");
  const uint64_t level = torch::autograd::forward_ad::enter_dual_level();
  EXPECT_EQ(refusal(*region, {x, w}), "forward-mode AD is active");
  torch::autograd::forward_ad::exit_dual_level(level);
  EXPECT_EQ(region->forward({x}).status().code(), StatusCode::kUnsupported);
}

TEST(Region, GradientsOfARegionWithoutBackwardAreRefused) {
  RegionSignature signature = plainSignature(2, 1, 0);
  signature.tangents.clear();
  const auto forward = [](Arguments inputs) -> StatusOr<Arguments> {
    return Arguments{sineProduct(tensor(inputs[0]), tensor(inputs[1]))};
  };
  const auto region = makeRegion(forward, unreachable, signature);
  EXPECT_EQ(refusal(*region, {leaf({3}), leaf({3})}), "gradients are wanted of a region without backward");
  EXPECT_EQ(refusal(*region, {at::ones({3}), at::ones({3})}), "");
}

TEST(Region, AFailedForwardLeavesInputsAndRandomStreamForAnEagerRun) {
  RegionSignature signature = plainSignature(1, 1, 0);
  signature.requiresGrad = {false};
  signature.tangents.clear();
  signature.mutatedInputs = {0};
  signature.drawsRandomNumbers = true;
  const auto forward = [](Arguments inputs) -> StatusOr<Arguments> {
    at::rand({7});
    return invalidArgument("input 0 is {} long", tensor(inputs[0]).numel());
  };
  const auto region = makeRegion(forward, unreachable, signature);
  const at::Tensor x = at::zeros({3}), state = aten::randomState();
  const auto version = x._version();
  EXPECT_EQ(refusal(*region, {x}), "input 0 is 3 long");
  EXPECT_TRUE(at::equal(aten::randomState(), state));
  EXPECT_TRUE(at::equal(x, at::zeros({3})));
  EXPECT_EQ(x._version(), version);
}

TEST(Region, WhatTheCodeThrowsReachesTheCallerWithTheRandomStreamRewound) {
  RegionSignature signature = plainSignature(1, 1, 0);
  signature.drawsRandomNumbers = true;
  const auto forward = [](Arguments) -> StatusOr<Arguments> {
    at::rand({7});
    throw std::overflow_error("too much");
  };
  const auto region = makeRegion(forward, unreachable, signature);
  const at::Tensor x = leaf({3}), state = aten::randomState();
  EXPECT_THROW((void)region->forward({x}), std::overflow_error);
  EXPECT_TRUE(at::equal(aten::randomState(), state));
}

TEST(Region, AWrongNumberOfResultsIsNamed) {
  const auto forward = [](Arguments) -> StatusOr<Arguments> { return Arguments{at::ones({3})}; };
  const auto region = makeRegion(forward, unreachable, plainSignature(1, 1, 1));
  EXPECT_THAT(errorOf([&] { (void)region->forward({leaf({3})}); }),
              HasSubstr("the forward direction of region test returned 1 results instead of 2"));
}

TEST(Region, MutationsAreAppliedAndCountedAndSavedTensorsKeepWhatWasThere) {
  const auto region = accumulatingRegion();
  const at::Tensor x = at::full({4}, 3.0, at::kDouble).requires_grad_(), total = at::ones({4}, at::kDouble);
  const auto version = total._version();
  const at::Tensor y = run(*region, {x, total});
  EXPECT_TRUE(at::equal(total, at::full({4}, 13.0, at::kDouble)));
  EXPECT_EQ(total._version(), version + 1);
  y.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full({4}, 3.0, at::kDouble))) << "2 * tangent + the old total";
}

TEST(Region, MutationsReachInputsOfAnotherLayout) {
  const auto region = accumulatingRegion();
  const at::Tensor total = at::zeros({8}, at::kDouble).slice(0, 0, 8, 2);
  run(*region, {leaf({4}).detach().fill_(1), total});
  EXPECT_TRUE(at::equal(total, at::full({4}, 4.0, at::kDouble)));
}

TEST(Region, InputsThatTheCodeMutatesItselfGetANewVersion) {
  RegionSignature signature = plainSignature(2, 1, 0);
  signature.requiresGrad = {true, false};
  signature.mutatedByCode = {1};
  const auto forward = [](Arguments inputs) -> StatusOr<Arguments> { return Arguments{tensor(inputs[0]) * 2}; };
  const auto region = makeRegion(forward, unreachable, signature);
  const at::Tensor counter = at::zeros({1});
  const auto version = counter._version();
  run(*region, {leaf({2}), counter});
  EXPECT_EQ(counter._version(), version + 1);
}

TEST(Region, OutputsThatAreInputsOrViewsOfThemAreTheCallersOwn) {
  RegionSignature signature = plainSignature(2, 3, 0);
  signature.outputsAsInputs = {-1, 1, -1};
  signature.outputViews = {-1, -1, 1};
  signature.tangents = {0};
  const auto forward = [](Arguments inputs) -> StatusOr<Arguments> {
    return Arguments{tensor(inputs[0]) * 3, inputs[1], tensor(inputs[1]).t()};
  };
  const auto backward = [](Arguments inputs) -> StatusOr<Arguments> { return Arguments{tensor(inputs[0]) * 3, {}}; };
  const auto region = makeRegion(forward, backward, signature);
  const at::Tensor x = leaf({2}), w = leaf({2, 3});
  const auto outputs = region->forward({x, w});
  ASSERT_TRUE(outputs.hasValue()) << outputs.status().message();
  EXPECT_TRUE(tensor(outputs->at(1)).is_same(w));
  const at::Tensor& view = tensor(outputs->at(2));
  EXPECT_TRUE(view.is_view());
  EXPECT_TRUE(view.storage().is_alias_of(w.storage()));
  (view * 5).sum().backward();
  EXPECT_TRUE(at::equal(w.grad(), at::full({2, 3}, 5.0, at::kDouble)));
}

TEST(Region, AnOutputThatTheCodeMadeOfAnInputIsTheCallersToChange) {
  RegionSignature signature = plainSignature(1, 1, 0);
  signature.requiresGrad = {false};
  signature.tangents.clear();
  const auto region =
      makeRegion([](Arguments inputs) -> StatusOr<Arguments> { return inputs; }, unreachable, signature);
  const at::Tensor x = at::ones({3});
  run(*region, {x}).zero_();
  EXPECT_TRUE(at::equal(x, at::ones({3})));
}

TEST(Region, ContradictionsAreRefusedWithTheNameOfTheRegion) {
  RegionSignature signature = plainSignature(1, 1, 0);
  signature.tangents = {4};
  const auto region =
      Region::create(std::make_unique<FunctionCode>(unreachable, std::vector<FunctionCode::Direction>{unreachable}),
                     std::move(signature), nullptr);
  EXPECT_EQ(region.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(region.status().message(), "region test: tangents names number 4 of 1");
}

TEST(Region, SeveralThreadsRunItAtOnce) {
  const auto region = sineProductRegion();
  const auto work = [&region] {
    for (int step = 0; step < 50; ++step) {
      const at::Tensor x = leaf({5}), w = leaf({5});
      const auto gradients = torch::autograd::grad({run(*region, {x, w}).sum()}, {x, w});
      const auto expected = torch::autograd::grad({sineProduct(x, w).sum()}, {x, w});
      ASSERT_TRUE(at::allclose(gradients[0], expected[0]));
      ASSERT_TRUE(at::allclose(gradients[1], expected[1]));
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace agspeed::runtime::autograd
