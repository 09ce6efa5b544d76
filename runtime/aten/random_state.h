// SPDX-License-Identifier: Apache-2.0
// The states of torch's default generators, the streams that random operators draw from: the CPU's, and that of the
// device that a call works on.
//
// Programs that compute a random operator again in their backward call two operators registered here:
//
//   agspeed::random_state() -> Tensor                        the CPU generator's state
//   agspeed::exchange_random_state(Tensor state) -> Tensor   sets it and returns what it was
//
// Thread-safety: each function locks the generator; a RandomStateScope does not keep other threads from drawing.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace agspeed::runtime::aten {

/// A copy of the CPU generator's state (about 5 KB).
at::Tensor randomState();

/// The states of the generators that a call may draw from. A value; copies share what they hold.
class RandomState {
 public:
  /// Of no generator: nothing is drawn.
  RandomState() = default;
  /// Of the CPU's generator now, and of `device`'s where it is another one. A device whose generator may not be asked
  /// (its stream is being captured) is left out.
  static RandomState now(std::optional<c10::Device> device);

  bool isDefined() const { return cpu_.defined(); }
  std::optional<c10::Device> device() const { return device_; }
  /// The generators go on from here. Does nothing when undefined.
  void restore() const;

 private:
  at::Tensor cpu_;
  std::optional<c10::Device> device_;
  at::Tensor onDevice_;
};

/// While alive, the generators continue from `state`; afterwards, from where they were. Nothing happens when `state` is
/// undefined.
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
