// SPDX-License-Identifier: Apache-2.0
// Translates a Status into an exception of agspeed.errors. GIL required. Only this code raises these exceptions. Some
// bindings raise others: the tuner's a ValueError, the memory meter's a RuntimeError, and comm/c10d and comm/horovod
// torch's exceptions.
//
//   kInvalidArgument                                 UserError (a ValueError)
//   kUnsupported, kUnavailable, kResourceExhausted   UnsupportedError
//   all others                                       InternalError
#pragma once

#include <pybind11/pybind11.h>

#include <utility>

#include "runtime/base/status.h"

namespace agspeed::python {

/// Throws pybind11::error_already_set. Requires: status is not ok.
[[noreturn]] void raise(const Status& status);

/// The value, or raise().
template <typename T>
T unwrap(StatusOr<T> result) {
  if (!result.hasValue()) raise(result.status());
  return std::move(result).value();
}

/// Makes AG_CHECK's InternalError appear as agspeed.errors.InternalError.
void registerInternalError();

}  // namespace agspeed::python
