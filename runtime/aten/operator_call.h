// SPDX-License-Identifier: Apache-2.0
// OperatorCall: an ExternalCall bound to a torch operator. The operator is looked up once. Arguments that are not
// tensors are converted to the types of its schema once per set of sizes. A call only fills in tensors.
//
// Thread-safety: const functions may run concurrently. No function throws, except that calling the operator handle
// itself may (the caller catches).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/program.h"

namespace agspeed::runtime::aten {

class OperatorCall {
 public:
  /// Errors: kUnsupported when torch has no such operator; kInvalidArgument when the arguments do not fit its schema.
  static StatusOr<OperatorCall> bind(const ExternalCall& call);

  /// The arguments for given symbol values, in schema order; None at the positions of tensors and lists of tensors.
  StatusOr<std::vector<c10::IValue>> resolveArguments(const std::vector<int64_t>& symbols) const;

  /// An argument that takes tensors: its position and the values to pass.
  struct TensorArgument {
    size_t position = 0;
    bool isList = false;
    bool isOptionalList = false;  ///< Tensor?[]
    std::vector<ValueId> values;
  };
  const std::vector<TensorArgument>& tensorArguments() const { return tensors_; }
  const std::vector<ValueId>& results() const { return results_; }
  /// For result i: the value whose memory it may share according to the schema (a view, an in-place result), or
  /// kNoValue.
  ValueId aliasOfResult(size_t i) const;
  const c10::OperatorHandle& handle() const { return handle_; }

 private:
  explicit OperatorCall(c10::OperatorHandle handle) : handle_(std::move(handle)) {}
  Status bindArgument(size_t index, const ExternalArg& arg);
  Status bindTensors(size_t position, const ExternalArg& arg);

  c10::OperatorHandle handle_;
  std::vector<std::optional<ExternalArg>> args_;  ///< in schema order; nullopt takes the schema's default
  std::vector<TensorArgument> tensors_;
  std::vector<ValueId> results_;
};

}  // namespace agspeed::runtime::aten
