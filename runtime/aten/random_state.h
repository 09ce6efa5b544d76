// SPDX-License-Identifier: Apache-2.0
// The states of torch's default generators, from which random operators draw: the CPU's generator, and the generator of
// the device that a call works on.
//
// A Program that computes a random operator again in its backward calls two operators that are registered here:
//
//   agspeed::random_state() -> Tensor                        the CPU generator's state
//   agspeed::exchange_random_state(Tensor state) -> Tensor   sets it and returns the previous state
//
// Thread-safety: each function locks the generator; a RandomStateScope does not keep other threads from drawing.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace agspeed::runtime::aten {

/// A copy of the CPU generator's state (about 5 KB).
at::Tensor randomState();

/// The states of the generators that a call may draw from. A value; copies share the tensors.
class RandomState {
 public:
  /// Holds no state: nothing is drawn.
  RandomState() = default;
  /// The current state of the CPU's generator, and of the generator of `device` if that is another device. It omits a
  /// device whose generator cannot be read because its stream is being captured.
  static RandomState now(std::optional<c10::Device> device);

  bool isDefined() const { return cpu_.defined(); }
  std::optional<c10::Device> device() const { return device_; }
  /// Sets the generators to this state. Does nothing when undefined.
  void restore() const;

 private:
  at::Tensor cpu_;
  std::optional<c10::Device> device_;
  at::Tensor onDevice_;
};

/// While alive, the generators continue from `state`; afterwards they continue from their previous states. Does nothing
/// if `state` is undefined.
class RandomStateScope {
 public:
  explicit RandomStateScope(const RandomState& state);
  RandomStateScope(const RandomStateScope&) = delete;
  RandomStateScope& operator=(const RandomStateScope&) = delete;
  ~RandomStateScope();

 private:
  RandomState before_;
};

}  // namespace agspeed::runtime::aten
