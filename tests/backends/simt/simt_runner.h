// SPDX-License-Identifier: Apache-2.0
// Runs kernels of backends/nvptx on the host, without a GPU. The LLVM IR that becomes PTX is compiled for this machine.
// Fibers, one per thread of a block, provide thread numbers, shuffles, barriers and shared memory. Blocks run one after
// another.
//
// The runner finds errors that would occur on a GPU. A shuffle or a barrier that not all threads reach is an error (a
// hang on a GPU). Shared memory starts with garbage. Threads run ahead as far as they can between two synchronisations,
// so a missing barrier shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace agspeed::simt {

struct Dim3 {
  uint32_t x = 1;
  uint32_t y = 1;
  uint32_t z = 1;
};

/// A loaded module. Thread-safe: launches run one at a time.
class Module {
 public:
  virtual ~Module() = default;
  virtual std::vector<std::string> functions() const = 0;
  /// Runs the whole grid and returns when it has ended. `parameters` are the bytes of the kernel's one parameter, a
  /// struct passed by value: cuLaunchKernel's `*kernelParams[0]`, or the buffer that CU_LAUNCH_PARAM_BUFFER_POINTER
  /// names. `sharedBytes` is the dynamic shared memory. It must be 0, because the kernels use none. Errors: kNotFound
  /// for an unknown function, kInvalidArgument for a shape that no GPU supports, kInternal if threads wait for others
  /// that have ended.
  virtual Status launch(std::string_view function, Dim3 grid, Dim3 block, size_t sharedBytes,
                        const void* parameters) = 0;
  /// Bytes of the function's parameter. Requires: one of functions().
  virtual size_t parameterBytes(std::string_view function) const = 0;
};

/// Loads PTX written by backends/nvptx. Its first comment lines contain the cluster, which is compiled again.
/// Errors: kDataLoss for other text.
StatusOr<std::unique_ptr<Module>> loadModule(std::string_view ptx);

}  // namespace agspeed::simt
