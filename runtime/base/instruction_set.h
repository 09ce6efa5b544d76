// SPDX-License-Identifier: Apache-2.0
// Chooses among variants of a function that Highway compiles for several instruction sets (hwy/foreach_target.h).
#pragma once

namespace agspeed {

/// Returns the variant for the best instruction set of this processor. A variant is null if its instruction set was not
/// compiled.
template <typename Function>
Function* bestVariant([[maybe_unused]] Function* avx3, [[maybe_unused]] Function* avx2, Function* baseline) {
#if defined(__x86_64__)
  if (avx3 != nullptr && __builtin_cpu_supports("x86-64-v4")) return avx3;
  if (avx2 != nullptr && __builtin_cpu_supports("x86-64-v3")) return avx2;
#endif
  return baseline;
}

}  // namespace agspeed
