// SPDX-License-Identifier: Apache-2.0
#include "runtime/aten/parallel.h"

#include <ATen/Parallel.h>

namespace agspeed::runtime::aten {

void runInSlices(int64_t extent, int64_t grain, const KernelLaunch& launch) {
  at::parallel_for(0, extent, grain, [&launch](int64_t begin, int64_t end) { launch.run(begin, end); });
}

}  // namespace agspeed::runtime::aten
