// SPDX-License-Identifier: Apache-2.0
// Executable: a loaded, runnable compiled region: named entries (Programs) over shared kernels and constants.
//
// Immutable after construction; any number of threads may run entries at the same time (per-call state lives in the
// executor). Owns its kernels' code and constants' bytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/program.h"

namespace agspeed::runtime {

/// See KernelCall for the meaning of the arguments.
using KernelFunction = void (*)(void* const* pointers, const int64_t* integers, int64_t begin, int64_t end);

/// Generated code of one Executable. The functions stay valid as long as the library lives.
class KernelLibrary {
 public:
  virtual ~KernelLibrary() = default;
  virtual size_t numKernels() const = 0;
  /// Requires: index < numKernels(). nullptr if this library interprets its kernels, or if they are for a device.
  virtual KernelFunction kernel(size_t index) const = 0;
  /// Runs rows (or columns) [begin, end) of a kernel that has no function. Thread-safety: may be called concurrently.
  virtual void launch(size_t index, void* const* pointers, const int64_t* integers, int64_t begin,
                      int64_t end) const = 0;
  /// Bytes of machine code at kernel(index); 0 if there is none, or if the size is not known.
  virtual size_t codeBytes(size_t /*index*/) const { return 0; }
  /// For Programs on a device, in place of launch(): queues the kernel on `stream`, the device's own handle, and does
  /// not wait. Errors: the errors of the device's driver.
  virtual Status enqueue(size_t index, void* const* pointers, const int64_t* integers, int64_t begin, int64_t end,
                         void* stream) const = 0;
};

/// A library whose kernels run on the host.
class HostKernelLibrary : public KernelLibrary {
 public:
  Status enqueue(size_t, void* const*, const int64_t*, int64_t, int64_t, void*) const final {
    return internalError("these kernels are not for a device");
  }
};

struct ConstantTensor {
  TensorType type;  ///< constant sizes, contiguous
  std::vector<std::byte> bytes;
  bool isOnHost = false;  ///< on the CPU, like its value in the Program
};

/// A kernel as people read it.
struct KernelText {
  std::string name;
  std::string text;  ///< its operations, one per line
};

/// How an Executable was made, for reports.
struct CompileStats {
  double compileSeconds = 0;
  int32_t numKernels = 0;
  int32_t numKernelCacheHits = 0;
  int32_t numCompiledOperators = 0;  ///< graph operators inside kernels
  int32_t numExternalOperators = 0;  ///< graph operators run through ATen
};

struct Executable {
  std::map<std::string, Program> entries;
  std::vector<ConstantTensor> constants;
  std::shared_ptr<const KernelLibrary> kernels;
  std::vector<KernelText> kernelTexts;  ///< by index of `kernels`
  CompileStats stats;
};

}  // namespace agspeed::runtime
