// SPDX-License-Identifier: Apache-2.0
// Runs kernels of backends/nvptx on the host, without a GPU: the LLVM IR that becomes PTX is compiled for this machine,
// and thread numbers, shuffles, barriers and shared memory are served by fibers, one per thread of a block. Blocks run
// one after another.
//
// What is wrong on a GPU is wrong here too, and is found: a shuffle or a barrier that not all threads reach is an error
// (on a GPU a hang), shared memory starts as garbage, and threads run ahead as far as they can between two meetings,
// so that a missing barrier shows.
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

/// A loaded module. Thread-safe: one launch at a time, others wait.
class Module {
 public:
  virtual ~Module() = default;
  virtual std::vector<std::string> functions() const = 0;
  /// Runs the whole grid and returns when it has ended. `parameters` are the bytes of the kernel's one parameter, a
  /// struct passed by value: as cuLaunchKernel's `*kernelParams[0]`, or what CU_LAUNCH_PARAM_BUFFER_POINTER names.
  /// `sharedBytes`: dynamic shared memory, which the kernels do not use; it must be 0.
  /// Errors: kNotFound for an unknown function, kInvalidArgument for a shape no GPU has, kInternal when threads wait
  /// for others that have ended.
  virtual Status launch(std::string_view function, Dim3 grid, Dim3 block, size_t sharedBytes,
                        const void* parameters) = 0;
  /// Bytes of the function's parameter. Requires: one of functions().
  virtual size_t parameterBytes(std::string_view function) const = 0;
};

/// Loads PTX as backends/nvptx writes it: the comment lines that open it hold the cluster, which is compiled again.
/// Errors: kDataLoss for other text.
StatusOr<std::unique_ptr<Module>> loadModule(std::string_view ptx);

}  // namespace agspeed::simt
