// SPDX-License-Identifier: Apache-2.0
// Differentiates a Region's EagerFunction (create_graph), with the inputs and random numbers of the forward.
#include "runtime/autograd/replay.h"

#include <gmock/gmock.h>

#include "runtime/aten/random_state.h"
#include "tests/runtime/autograd/regions.h"

namespace agspeed::runtime::autograd {
namespace {

using ::testing::HasSubstr;
using torch::autograd::grad;

Tensors gradWithGraph(const at::Tensor& y, const Tensors& inputs) {
  return grad({y.sum()}, inputs, {}, /*retain_graph=*/true, /*create_graph=*/true);
}

// y = sin(x), whose compiled backward must not run; `replay` replays it.
std::shared_ptr<const Region> replayedSine(FunctionReplay::Function replay) {
  const auto forward = [](Arguments inputs) -> StatusOr<Arguments> { return Arguments{at::sin(tensor(inputs[0]))}; };
  const auto backward = [](Arguments) -> StatusOr<Arguments> { return internalError("the compiled backward ran"); };
  return makeRegion(forward, backward, plainSignature(1, 1, 0), std::move(replay));
}

Tensors sine(const Arguments& inputs) { return {at::sin(tensor(inputs[0]))}; }

TEST(Replay, SecondDerivativesEqualTorchs) {
  const auto region = sineProductRegion();
  const at::Tensor x = leaf({4}), w = leaf({4});
  const auto second = [&](const at::Tensor& y) {
    const Tensors first = gradWithGraph(y, {x, w});
    return grad({(first[0] * first[1]).sum()}, {x, w});
  };
  const Tensors ours = second(run(*region, {x, w}));
  const Tensors theirs = second(sineProduct(x, w));
  EXPECT_TRUE(at::allclose(ours[0], theirs[0]));
  EXPECT_TRUE(at::allclose(ours[1], theirs[1]));
}

TEST(Replay, AnOrdinaryBackwardDoesNotReplay) {
  RegionSignature signature = plainSignature(2, 1, 2);
  int replays = 0;
  const auto region = makeRegion(sineProductForward, sineProductBackward, signature, [&](const Arguments& inputs) {
    ++replays;
    return Tensors{sineProduct(tensor(inputs[0]), tensor(inputs[1]))};
  });
  const at::Tensor x = leaf({4}), w = leaf({4}), y = run(*region, {x, w});
  grad({y.sum()}, {x, w}, {}, /*retain_graph=*/true);
  EXPECT_EQ(replays, 0);
  gradWithGraph(y, {x, w});
  EXPECT_EQ(replays, 1);
}

// y = sin(x), whose compiled backward throws.
template <typename Error>
std::shared_ptr<const Region> failingSine() {
  const auto forward = [](Arguments inputs) -> StatusOr<Arguments> { return Arguments{at::sin(tensor(inputs[0]))}; };
  const auto backward = [](Arguments) -> StatusOr<Arguments> { throw Error("the compiled backward failed"); };
  return makeRegion(forward, backward, plainSignature(1, 1, 0), sine);
}

TEST(Replay, StandsInForABackwardThatFails) {
  const at::Tensor x = leaf({4});
  const at::Tensor gradient = grad({run(*failingSine<ReplaceableError>(), {x}).sum()}, {x})[0];
  EXPECT_TRUE(at::allclose(gradient, at::cos(x)));
  EXPECT_FALSE(gradient.requires_grad());
}

TEST(Replay, LeavesFailuresAloneThatItMayNotReplace) {
  const at::Tensor x = leaf({4});
  const at::Tensor y = run(*failingSine<std::runtime_error>(), {x});
  EXPECT_THROW(grad({y.sum()}, {x}), std::runtime_error);
}

TEST(Replay, WhereItCannotStandInTheFirstFailureIsThrown) {
  const at::Tensor x = leaf({4});
  const at::Tensor y = run(*failingSine<ReplaceableError>(), {x});
  {
    const at::NoGradGuard noGrad;
    x.add_(1);
  }
  EXPECT_THROW(grad({y.sum()}, {x}), ReplaceableError);
}

TEST(Replay, InputsWithAHistoryKeepIt) {
  const auto region = replayedSine(sine);
  const at::Tensor x = leaf({4});
  const at::Tensor first = gradWithGraph(run(*region, {x.exp()}), {x})[0];
  const at::Tensor expected = gradWithGraph(at::sin(x.exp()), {x})[0];
  EXPECT_TRUE(at::allclose(first, expected));
  EXPECT_TRUE(at::allclose(grad({first.sum()}, {x})[0], grad({expected.sum()}, {x})[0]));
}

TEST(Replay, IntegersAndMissingInputsComeAsTheyWere) {
  RegionSignature signature = plainSignature(3, 1, 0);
  signature.requiresGrad = {true, false, false};
  const auto forward = [](Arguments inputs) -> StatusOr<Arguments> {
    return Arguments{tensor(inputs[0]) * std::get<int64_t>(inputs[1])};
  };
  const auto backward = [](Arguments) -> StatusOr<Arguments> { return internalError("the compiled backward ran"); };
  const auto region = makeRegion(forward, backward, signature, [](const Arguments& inputs) {
    EXPECT_TRUE(std::holds_alternative<std::monostate>(inputs[2]));
    return Tensors{tensor(inputs[0]) * std::get<int64_t>(inputs[1])};
  });
  const at::Tensor x = leaf({4});
  const at::Tensor gradient = gradWithGraph(run(*region, {x, int64_t{7}, {}}), {x})[0];
  EXPECT_TRUE(at::equal(gradient, at::full({4}, 7.0, at::kDouble)));
}

TEST(Replay, DrawsTheForwardsNumbersAndLeavesTheStreamAlone) {
  RegionSignature signature = plainSignature(1, 1, 1);
  signature.drawsRandomNumbers = true;
  const auto forward = [](Arguments inputs) -> StatusOr<Arguments> {
    const at::Tensor noise = at::rand({4}, at::kDouble);
    return Arguments{tensor(inputs[0]) * noise, noise};
  };
  const auto backward = [](Arguments) -> StatusOr<Arguments> { return internalError("the compiled backward ran"); };
  const auto region = makeRegion(forward, backward, signature, [](const Arguments& inputs) {
    return Tensors{tensor(inputs[0]) * at::rand({4}, at::kDouble)};
  });
  const at::Tensor x = at::ones({4}, at::kDouble).requires_grad_();
  const at::Tensor y = run(*region, {x});
  const at::Tensor state = aten::randomState();
  EXPECT_TRUE(at::equal(gradWithGraph(y, {x})[0], y)) << "the gradient is the noise, and x is one";
  EXPECT_TRUE(at::equal(aten::randomState(), state));
}

TEST(Replay, WithoutAnEagerFunctionTheErrorSaysWhatToDo) {
  const auto region = replayedSine(nullptr);
  const at::Tensor x = leaf({4});
  EXPECT_THAT(errorOf([&] { gradWithGraph(run(*region, {x}), {x}); }),
              HasSubstr("region test was compiled without a way to differentiate its backward"));
}

TEST(Replay, AModifiedInputIsNamed) {
  const auto region = replayedSine(sine);
  const at::Tensor x = leaf({4}), y = run(*region, {x});
  {
    const at::NoGradGuard noGrad;
    x.add_(1);
  }
  EXPECT_THAT(errorOf([&] { gradWithGraph(y, {x}); }), HasSubstr("an input of region test is at version"));
}

TEST(Replay, OutputsThatContradictTheSignatureAreNamed) {
  const at::Tensor x = leaf({4});
  const auto tooMany = replayedSine([](const Arguments& inputs) { return Tensors(2, tensor(inputs[0])); });
  EXPECT_THAT(errorOf([&] { gradWithGraph(run(*tooMany, {x}), {x}); }),
              HasSubstr("replay of region test returned 2 outputs instead of 1"));
  const auto none = replayedSine([](const Arguments&) { return Tensors(1); });
  EXPECT_THAT(errorOf([&] { gradWithGraph(run(*none, {x}), {x}); }),
              HasSubstr("replay of region test returned no tensor for output 0"));
}

TEST(Replay, AnExceptionOfTheFunctionReachesTheCaller) {
  const auto region = replayedSine([](const Arguments&) -> Tensors { throw std::overflow_error("too much"); });
  const at::Tensor x = leaf({4});
  EXPECT_THROW(gradWithGraph(run(*region, {x}), {x}), std::overflow_error);
}

TEST(Replay, OutputsThatDoNotDependOnInputsGiveUndefinedGradients) {
  const auto region = replayedSine([](const Arguments&) { return Tensors{at::ones({4}, at::kDouble)}; });
  const at::Tensor x = leaf({4});
  const Tensors gradients = grad({run(*region, {x}).sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true,
                                 /*allow_unused=*/true);
  EXPECT_FALSE(gradients[0].defined());
}

TEST(Replay, AReleasedGraphIsTorchsError) {
  const auto region = sineProductRegion();
  const at::Tensor x = leaf({4}), w = leaf({4}), y = run(*region, {x, w});
  grad({y.sum()}, {x, w});
  EXPECT_THAT(errorOf([&] { gradWithGraph(y, {x, w}); }), HasSubstr("a second time"));
}

TEST(Replay, AnInputModifiedLaterMakesNoCycle) {
  const auto region = replayedSine(sine);
  at::Tensor x = leaf({4}) * 1;
  at::Tensor y = run(*region, {x});
  const auto node = watch(y.grad_fn());
  x.add_(y.sum());  // its history now contains the node, which holds it for the replay
  y.reset();
  EXPECT_FALSE(node.expired()) << "x's history holds it";
  x.reset();
  EXPECT_TRUE(node.expired());
}

}  // namespace
}  // namespace agspeed::runtime::autograd
