// SPDX-License-Identifier: Apache-2.0
// Regions for tests. Their directions and their eager function are plain functions of tensors, written with ATen.
//
// The usual region computes y = sin(x) * w and saves x and w.
#pragma once

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "runtime/autograd/region.h"

namespace agspeed::runtime::autograd {

using Arguments = std::vector<aten::Argument>;
using Tensors = std::vector<at::Tensor>;

inline const at::Tensor& tensor(const aten::Argument& argument) { return std::get<at::Tensor>(argument); }

/// Watches a node without owning it, for any kind of owner count in torch. Has expired().
template <typename T>
std::weak_ptr<T> watch(const std::shared_ptr<T>& node) {
  return node;
}
template <typename T>
c10::weak_intrusive_ptr<T> watch(const c10::intrusive_ptr<T>& node) {
  return c10::weak_intrusive_ptr<T>(node);
}

/// A function for the forward and one for each stage of the backward. They run below autograd, as Programs do.
class FunctionCode final : public RegionCode {
 public:
  using Direction = std::function<StatusOr<Arguments>(Arguments)>;
  FunctionCode(Direction forward, std::vector<Direction> stages)
      : forward_(std::move(forward)), stages_(std::move(stages)) {}

  Status check(const RegionSignature&) const override { return {}; }
  c10::DispatchKeySet acceptedKeys() const override {
    return c10::DispatchKeySet(c10::DispatchKey::CPU) | c10::autograd_dispatch_keyset_with_ADInplaceOrView |
           c10::autocast_dispatch_keyset;
  }
  std::optional<std::vector<SavedView>> savedViews(const RegionSignature&) const override { return std::nullopt; }
  StatusOr<Arguments> forward(const Arguments& inputs) const override {
    const aten::OperatorsOnly guard;
    return forward_(inputs);
  }
  bool isReplaceable() const override { return true; }
  std::unique_ptr<BackwardRun> beginBackward(const RegionSignature&) const override {
    return std::make_unique<Run>(stages_);
  }

 private:
  class Run final : public BackwardRun {
   public:
    explicit Run(const std::vector<Direction>& stages) : stages_(stages) {}
    StatusOr<Arguments> resume(Arguments inputs) override {
      const aten::OperatorsOnly guard;
      return stages_.at(next_++)(std::move(inputs));
    }

   private:
    const std::vector<Direction>& stages_;
    size_t next_ = 0;
  };

  const Direction forward_;
  const std::vector<Direction> stages_;
};

/// An error after which a FunctionReplay may replace the compiled code.
struct ReplaceableError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A function that may be replayed.
class FunctionReplay final : public EagerFunction {
 public:
  using Function = std::function<Tensors(const Arguments&)>;
  explicit FunctionReplay(Function function) : function_(std::move(function)) {}
  Tensors replay(const Arguments& inputs) const override { return function_(inputs); }
  bool mayReplace(const std::exception& error) const override {
    return dynamic_cast<const ReplaceableError*>(&error) != nullptr;
  }
  void codeFailed(const std::string& reason) const override { failures.push_back(reason); }

  mutable std::vector<std::string> failures;

 private:
  const Function function_;
};

/// Returns a signature in which all values are tensors and all inputs and outputs are differentiable.
inline RegionSignature plainSignature(size_t numInputs, size_t numOutputs, size_t numSavedTensors) {
  RegionSignature signature;
  signature.name = "test";
  signature.requiresGrad.assign(numInputs, true);
  signature.numOutputs = numOutputs;
  signature.outputsAsInputs.assign(numOutputs, -1);
  signature.outputViews.assign(numOutputs, -1);
  for (size_t i = 0; i < numOutputs; ++i) signature.tangents.push_back(static_cast<int32_t>(i));
  signature.numSavedTensors = numSavedTensors;
  return signature;
}

inline std::shared_ptr<const Region> makeStagedRegion(FunctionCode::Direction forward,
                                                      std::vector<FunctionCode::Direction> stages,
                                                      RegionSignature signature,
                                                      FunctionReplay::Function replay = nullptr) {
  auto eager = replay ? std::make_unique<FunctionReplay>(std::move(replay)) : nullptr;
  auto region = Region::create(std::make_unique<FunctionCode>(std::move(forward), std::move(stages)),
                               std::move(signature), std::move(eager));
  EXPECT_TRUE(region.hasValue()) << region.status().message();
  return region.hasValue() ? *region : nullptr;
}

inline std::shared_ptr<const Region> makeRegion(FunctionCode::Direction forward, FunctionCode::Direction backward,
                                                RegionSignature signature, FunctionReplay::Function replay = nullptr) {
  return makeStagedRegion(std::move(forward), {std::move(backward)}, std::move(signature), std::move(replay));
}

inline at::Tensor sineProduct(const at::Tensor& x, const at::Tensor& w) { return at::sin(x) * w; }

inline StatusOr<Arguments> sineProductForward(Arguments inputs) {
  return Arguments{sineProduct(tensor(inputs[0]), tensor(inputs[1])), inputs[0], inputs[1]};
}

inline StatusOr<Arguments> sineProductBackward(Arguments inputs) {
  const at::Tensor &x = tensor(inputs[0]), &w = tensor(inputs[1]), &tangent = tensor(inputs[2]);
  return Arguments{tangent * w * at::cos(x), tangent * at::sin(x)};
}

inline std::shared_ptr<const Region> sineProductRegion() {
  return makeRegion(sineProductForward, sineProductBackward, plainSignature(2, 1, 2),
                    [](const Arguments& inputs) { return Tensors{sineProduct(tensor(inputs[0]), tensor(inputs[1]))}; });
}

inline at::Tensor leaf(at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble).requires_grad_(); }

/// Returns the only output. If the call is refused, fails the test and returns an undefined tensor.
inline at::Tensor run(const Region& region, const Arguments& inputs) {
  const auto outputs = region.forward(inputs);
  EXPECT_TRUE(outputs.hasValue()) << outputs.status().message();
  return outputs.hasValue() ? tensor(outputs->at(0)) : at::Tensor();
}

inline std::string refusal(const Region& region, const Arguments& inputs) {
  return region.forward(inputs).status().message();
}

/// Returns what() of the torch error that `action` throws; empty if it throws none.
template <typename Action>
std::string errorOf(const Action& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

}  // namespace agspeed::runtime::autograd
