// SPDX-License-Identifier: Apache-2.0
// TensorBackend: what the executor needs from a tensor library. runtime/aten implements it with torch.
//
// There are two classes: the backend (shared, thread-safe, for one Program) and a frame (the tensors of one call in
// flight, used by one thread at a time and reused by later calls). Values are addressed by ValueId; the executor sees
// only data pointers. No function throws: failures of operators are returned as a Status.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "runtime/base/status.h"
#include "runtime/executable.h"
#include "runtime/resolved_program.h"

namespace agspeed::runtime {

/// A kernel with all its arguments except the slice.
struct KernelLaunch {
  KernelFunction function = nullptr;  ///< nullptr: the library interprets the kernel
  const KernelLibrary* library = nullptr;
  size_t kernel = 0;
  void* const* pointers = nullptr;
  const int64_t* integers = nullptr;

  void run(int64_t begin, int64_t end) const {
    if (function != nullptr) {
      function(pointers, integers, begin, end);
    } else {
      library->launch(kernel, pointers, integers, begin, end);
    }
  }
};

class TensorFrame {
 public:
  virtual ~TensorFrame() = default;

  /// Size of dimension `dim` of a tensor input; the value of an integer input when dim is -1.
  virtual int64_t inputSize(int32_t input, int32_t dim) const = 0;
  /// Starts a call: checks dtype, sizes, strides and device of the inputs against `resolved`, which outlives the call.
  /// `arena` is the call's planned memory. Errors: kInvalidArgument naming the input.
  virtual Status begin(const ResolvedProgram& resolved, std::byte* arena) = 0;
  /// For Programs on a device. allocateArena(): memory for the call's planned values, which end() frees. stream(): the
  /// stream on which this thread's work is queued now (the device's own handle; null is its default stream). Errors:
  /// kResourceExhausted.
  virtual StatusOr<std::byte*> allocateArena(int64_t bytes) = 0;
  virtual void* stream() const = 0;
  /// Address of a tensor's first element. Requires: the value is an input, a constant, or already produced.
  virtual void* data(ValueId value) = 0;
  /// Allocates a kFresh value.
  virtual Status allocate(ValueId value) = 0;
  /// Runs the index-th ExternalCall of the Program and stores its results.
  virtual Status call(size_t index) = 0;
  /// Makes the tensor of a kView value. Requires: its source is produced.
  virtual void view(ValueId value) = 0;
  virtual void release(ValueId value) = 0;
  /// Ends a call: drops every tensor that the caller has not taken.
  virtual void end() = 0;
};

class TensorBackend {
 public:
  virtual ~TensorBackend() = default;
  virtual std::unique_ptr<TensorFrame> newFrame() const = 0;
  /// Prepares operator arguments for these sizes. Errors: kInvalidArgument naming the operator and the argument.
  virtual StatusOr<std::unique_ptr<PreparedCalls>> prepare(const ResolvedProgram& resolved) const = 0;
  /// Runs [0, extent) in slices of at least `grain`, on the tensor library's own worker threads.
  virtual void parallelFor(int64_t extent, int64_t grain, const KernelLaunch& launch) const = 0;
  /// Whether a profiler of the tensor library records this thread now. Cheap: called once for each stage of a call.
  virtual bool isProfiling() const = 0;
  /// Runs `work`, which a profiler shows as an event of that name. Returns: its result.
  virtual Status profiled(const std::string& name, const std::function<Status()>& work) const = 0;
};

}  // namespace agspeed::runtime
