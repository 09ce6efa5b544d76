// SPDX-License-Identifier: Apache-2.0
// The state of torch's default CPU generator, the stream that random operators draw from.
//
// Thread-safety: each function locks the generator; a RandomStateScope does not keep other threads from drawing.
#pragma once

#include <ATen/core/Tensor.h>

namespace agspeed::runtime::aten {

/// A copy of the state (about 5 KB).
at::Tensor randomState();
void setRandomState(const at::Tensor& state);

/// While alive, the generator continues from `state`; afterwards, from where it was. Nothing happens when `state` is
/// undefined.
class RandomStateScope {
 public:
  explicit RandomStateScope(const at::Tensor& state);
  RandomStateScope(const RandomStateScope&) = delete;
  RandomStateScope& operator=(const RandomStateScope&) = delete;
  ~RandomStateScope();

 private:
  at::Tensor before_;
};

}  // namespace agspeed::runtime::aten
