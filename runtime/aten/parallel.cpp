// SPDX-License-Identifier: Apache-2.0
// Compiled with OpenMP, as torch's headers require: at::parallel_for is inlined here and must use torch's thread pool.
#include <ATen/Parallel.h>

#include "runtime/aten/aten_backend.h"

namespace agspeed::runtime::aten {

void AtenBackend::parallelFor(int64_t extent, int64_t grain, const KernelLaunch& launch) const {
  at::parallel_for(0, extent, grain, [&launch](int64_t begin, int64_t end) { launch.run(begin, end); });
}

}  // namespace agspeed::runtime::aten
