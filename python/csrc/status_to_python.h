// SPDX-License-Identifier: Apache-2.0
// Status -> Python exception: the one place that translates.
//
//   kInvalidArgument -> agspeed.errors.UserError (a ValueError)      kInternal, kDataLoss ->
//   agspeed.errors.InternalError kUnsupported, kUnavailable, kResourceExhausted -> agspeed.errors.UnsupportedError
// GIL required.
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
  if (!result) raise(result.status());
  return std::move(result).value();
}

/// Makes AG_CHECK's InternalError surface as agspeed.errors.InternalError.
void registerInternalError();

}  // namespace agspeed::python
