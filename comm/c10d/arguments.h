// SPDX-License-Identifier: Apache-2.0
// Helpers of ProcessGroup. They check torch's arguments, translate them into calls of comm, convert a Status to torch's
// exceptions, and exceptions to texts. Errors use the texts of torch's Gloo backend, so that code that searches for
// them keeps working. A function throws ValueError unless its comment names another exception. Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <exception>
#include <span>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <utility>
#include <vector>

#include "comm/api.h"
#include "runtime/base/status.h"

namespace agspeed::comm::c10d {

/// Throws the exception that torch expects for this failure: ValueError for wrong arguments, else DistBackendError.
[[noreturn]] void raise(const Status& status);

/// Returns the message of `error`, without the C++ stack that torch adds.
std::string messageOf(const std::exception& error);

/// Throws DistBackendError in a process that was forked after the world was made.
void checkNotForked(const World& world);

/// Returns the value of `result`, or raises its error.
template <typename T>
T valueOrThrow(StatusOr<T> result) {
  if (!result.hasValue()) raise(result.status());
  return std::move(result.value());
}

/// Returns the only tensor of the list. Throws if the list has another number of tensors.
at::Tensor& single(std::vector<at::Tensor>& tensors, const char* operation);
/// Checks that both tensors have the same type.
void checkSameType(const at::Tensor& expected, const at::Tensor& tensor, const char* operation);
/// Returns the tag of a message as an unsigned number. Throws if it is negative.
uint32_t checkedTag(int tag, const char* operation);
/// Checks that there are as many outputs as inputs.
void checkPaired(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs, const char* operation);
/// Checks that `count` is `expected`, the number of ranks. `what` names the counted things in the error.
void checkCount(size_t count, size_t expected, const char* operation, const char* what);
/// Checks that `whole` has the type of `part` and `count` times as many elements.
void checkParts(const at::Tensor& whole, const at::Tensor& part, int count, const char* operation);

/// Returns the first list, or an empty list if there is none. Only the root of an operation has one.
at::TensorList firstOf(const std::vector<std::vector<at::Tensor>>& lists);
/// Returns the world ranks of the group's ranks `ranks`: members[rank] for each.
std::vector<int> membersOf(const std::vector<int>& members, const std::vector<int>& ranks);

/// Makes `plan` run the collective of this name by the algorithm of this name. An empty algorithm means the default.
void chooseAlgorithm(Plan& plan, const std::string& collective, const std::string& algorithm);
/// Sets the call's reduction `op`, and its element type to the type of `tensor`.
void setReduction(CollectiveCall& call, const ::c10d::ReduceOp& op, const at::Tensor& tensor);
/// Divides `whole`, the bytes of `tensor`, along its first dimension: into parts of `sizes` rows, or into `count` equal
/// parts if `sizes` is empty.
BufferList cut(std::span<std::byte> whole, const at::Tensor& tensor, const std::vector<int64_t>& sizes, int count,
               const char* what);

}  // namespace agspeed::comm::c10d
