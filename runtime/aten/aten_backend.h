// SPDX-License-Identifier: Apache-2.0
// TensorBackend of torch: one AtenBackend per entry, one AtenFrame per call in flight.
//
// Operators run below autograd, autocast, functorch and Python dispatch, whatever the calling thread has enabled,
// because the graph was traced through all of these. If the strides of a result differ from the Program's, the result
// is copied into the declared layout, for which kernels were compiled. Threading and ownership: see
// runtime/tensor_backend.h. The backend holds the constants' tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <vector>

#include "runtime/aten/operator_call.h"
#include "runtime/tensor_backend.h"

namespace agspeed::runtime::aten {

/// The prepared arguments of all ExternalCalls, for one set of sizes.
struct AtenCalls final : PreparedCalls {
  std::vector<std::vector<c10::IValue>> arguments;
};

class AtenBackend final : public TensorBackend {
 public:
  /// `program` and `constants` (by index into Executable::constants) must outlive the backend.
  /// Errors: see OperatorCall::bind.
  static StatusOr<std::shared_ptr<AtenBackend>> create(const Program& program,
                                                       const std::vector<at::Tensor>& constants);

  std::unique_ptr<TensorFrame> newFrame() const override;
  StatusOr<std::unique_ptr<PreparedCalls>> prepare(const ResolvedProgram& resolved) const override;
  void parallelFor(int64_t extent, int64_t grain, const KernelLaunch& launch) const override;
  bool isProfiling() const override;
  Status profiled(const std::string& name, const std::function<Status()>& work) const override;

  const Program& program() const { return program_; }
  const std::vector<OperatorCall>& calls() const { return calls_; }
  const std::vector<at::Tensor>& constants() const { return constants_; }
  /// The value whose memory `value` may share, following views to their source; `value` itself when it owns its memory.
  ValueId root(ValueId value) const { return roots_[value]; }
  c10::Device device() const { return device_; }  ///< of the Program
  c10::Device deviceOf(ValueId value) const { return program_.values[value].isOnHost ? c10::kCPU : device_; }

 private:
  AtenBackend(const Program& program, const std::vector<at::Tensor>& constants);
  void findRoots();

  const Program& program_;
  const std::vector<at::Tensor>& constants_;
  const c10::Device device_;
  std::vector<OperatorCall> calls_;
  std::vector<ValueId> roots_;  ///< by ValueId
};

class AtenFrame final : public TensorFrame {
 public:
  explicit AtenFrame(const AtenBackend& backend);

  /// Before run: the inputs, by position.
  void setInput(size_t index, at::Tensor tensor) { slots_[backend_.program().inputs[index]] = std::move(tensor); }
  void setInput(size_t index, int64_t integer) { integers_[index] = integer; }
  /// Before run: inputs from this position on may have other strides than the Program declares; they are then copied.
  void setFlexibleFrom(size_t index) { flexibleFrom_ = index; }
  /// After run: a tensor output by position; undefined for None. Each output may be taken once.
  at::Tensor takeOutput(size_t index);

  int64_t inputSize(int32_t input, int32_t dim) const override;
  Status begin(const ResolvedProgram& resolved, std::byte* arena) override;
  StatusOr<std::byte*> allocateArena(int64_t bytes) override;
  void* stream() const override;
  void* data(ValueId value) override;
  Status allocate(ValueId value) override;
  Status call(size_t index) override;
  void view(ValueId value) override;
  void release(ValueId value) override;
  void end() override;

 private:
  Status checkInput(size_t index);
  bool isInArena(const at::Tensor& tensor) const;
  void moveArena(std::byte* arena);
  const at::Tensor& tensor(ValueId value);
  c10::IValue tensorArgument(const OperatorCall::TensorArgument& argument);
  Status storeResults(const OperatorCall& call);
  Status storeResult(ValueId value, at::Tensor tensor);

  const AtenBackend& backend_;
  const ResolvedProgram* resolved_ = nullptr;
  const AtenCalls* calls_ = nullptr;
  std::byte* arena_ = nullptr;
  at::Tensor arenaOnDevice_;  ///< owns the memory at arena_ during a call on a device
  size_t flexibleFrom_ = 0;
  std::vector<at::Tensor> slots_;     ///< by ValueId
  std::vector<int64_t> integers_;     ///< integer inputs, by position
  std::vector<ValueId> transient_;    ///< slots that end() empties
  std::vector<ValueId> inArena_;      ///< slots that stay valid until sizes or arena change, with views of these
  std::vector<bool> constantOutput_;  ///< by output: whether it is a constant or a view of one
  std::vector<bool> lastOutput_;      ///< by output: whether no later output is the same value
  c10::Stack stack_;                  ///< of the operator being called
};

}  // namespace agspeed::runtime::aten
