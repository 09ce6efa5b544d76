// SPDX-License-Identifier: Apache-2.0
// Helpers of ProcessGroup's functions. They check torch's arguments with the texts of torch's Gloo backend, translate
// them into our calls, turn failures into torch's exceptions, and exceptions into texts. A function throws ValueError
// unless its comment names another exception. Thread-safe.
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

namespace agspeed::comm {

/// Throws the exception that torch expects for this failure: ValueError for wrong arguments, else DistBackendError.
[[noreturn]] void raise(const Status& status);

/// The message of `error`, without the C++ frames that torch adds.
std::string messageOf(const std::exception& error);

/// Throws DistBackendError in a process that was forked after the world was made.
void checkNotForked(const World& world);

template <typename T>
T valueOrThrow(StatusOr<T> result) {
  if (!result.isOk()) raise(result.status());
  return std::move(result.value());
}

/// The tensor of an operation that takes one tensor per rank.
at::Tensor& single(std::vector<at::Tensor>& tensors, const char* operation);
void checkSameType(const at::Tensor& expected, const at::Tensor& tensor, const char* operation);
/// The tag of a message, which must not be negative.
uint32_t checkedTag(int tag, const char* operation);
void checkPaired(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs, const char* operation);
/// Checks that there is one `what` per rank.
void checkCount(size_t count, size_t expected, const char* operation, const char* what);
/// Checks that `whole` is `count` times as large as `part`.
void checkParts(const at::Tensor& whole, const at::Tensor& part, int count, const char* operation);

/// The first list, which only an operation's root has; empty at other ranks.
at::TensorList firstOf(const std::vector<std::vector<at::Tensor>>& lists);
/// The members of a group at the positions `ranks`.
std::vector<int> membersOf(const std::vector<int>& members, const std::vector<int>& ranks);

/// Makes `plan` run the collective of this name by the algorithm of this name; empty: as planned.
void chooseAlgorithm(Plan& plan, const std::string& collective, const std::string& algorithm);
/// Sets the call's operation and type for reducing elements of the type of `tensor`.
void setReduction(CollectiveCall& call, const ::c10d::ReduceOp& op, const at::Tensor& tensor);
/// Cuts `whole` along its first dimension into parts of `sizes` rows, or into `count` equal parts if `sizes` is empty.
BufferList cut(std::span<std::byte> whole, const at::Tensor& tensor, const std::vector<int64_t>& sizes, int count,
               const char* what);

}  // namespace agspeed::comm
