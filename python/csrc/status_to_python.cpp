// SPDX-License-Identifier: Apache-2.0
#include "python/csrc/status_to_python.h"

#include <exception>
#include <string>

namespace agspeed::python {
namespace {

const char* exceptionFor(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument: return "UserError";
    case StatusCode::kUnsupported:
    case StatusCode::kUnavailable:
    case StatusCode::kResourceExhausted: return "UnsupportedError";
    default: return "InternalError";
  }
}

void setError(const char* type, const std::string& message) {
  const auto exception = pybind11::module_::import("agspeed.errors").attr(type);
  PyErr_SetString(exception.ptr(), message.c_str());
}

}  // namespace

void raise(const Status& status) {
  setError(exceptionFor(status.code()), status.message());
  throw pybind11::error_already_set();
}

void registerInternalError() {
  pybind11::register_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const InternalError& internal) {
      setError("InternalError", internal.what());
    }
  });
}

}  // namespace agspeed::python
