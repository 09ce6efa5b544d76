// SPDX-License-Identifier: Apache-2.0
// Random numbers of torch's default CPU generator, drawn faster than torch does.
//
// Programs call it as an operator:
//
//   agspeed::bernoulli_mask(SymInt[] sizes, float probability) -> Tensor
//
// Thread-safety: the function locks the generator.
#pragma once

#include <ATen/core/Tensor.h>

namespace agspeed::runtime::aten {

/// Returns a contiguous bool tensor whose elements are true with this probability (0 to 1). torch's bernoulli would
/// draw the same elements, and would leave the generator in the same state. The first call tests this on private
/// generators. If the test fails, as on processors where torch uses a generator of MKL, all calls use torch's operator.
at::Tensor bernoulliMask(at::IntArrayRef sizes, double probability);

}  // namespace agspeed::runtime::aten
