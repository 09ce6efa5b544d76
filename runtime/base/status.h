// SPDX-License-Identifier: Apache-2.0
// Status and StatusOr<T>: how C++ code outside python/csrc reports failure. A component throws in three cases only: a
// bug of ours (check.h), a lack of memory or threads, and failures in code that torch calls (runtime/autograd,
// comm/c10d, comm/horovod), which throws torch's exceptions.
//
// A Status is a value: copy it, store it, pass it to another thread. The code says what the caller may do next (see
// StatusCode). The message is a sentence for the user: what failed, with values, where, what to do.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/format.h"

namespace agspeed {

/// Error codes, and what a caller may do about each.
enum class StatusCode {
  kOk = 0,
  kInvalidArgument,    ///< the caller's input is wrong; becomes ValueError; retrying does not help
  kUnsupported,        ///< valid, but this component cannot do it; the caller falls back (eager, ATen), logs once
  kUnavailable,        ///< a resource is missing for now (lock, file, peer); a retry may succeed
  kResourceExhausted,  ///< a budget or limit was hit (time, memory); the caller falls back
  kDataLoss,           ///< stored or received bytes differ from the bytes that were written; discard them
  kInternal,           ///< our bug; state of the object is undefined, drop it
};

/// Short stable name, e.g. "invalid argument".
std::string_view toString(StatusCode code);

/// Outcome of an operation without a result. Thread-safety: const methods may be called concurrently.
class [[nodiscard]] Status {
 public:
  Status() = default;  ///< success
  Status(StatusCode code, std::string message);

  bool isOk() const { return state_ == nullptr; }
  StatusCode code() const { return state_ ? state_->code : StatusCode::kOk; }
  /// Empty when ok.
  const std::string& message() const;
  /// "invalid argument: <message>", or "ok".
  std::string toString() const;
  /// The same failure with "<context>: " in front of its message; ok stays ok.
  Status withContext(std::string_view context) const;

 private:
  struct State {
    StatusCode code;
    std::string message;
  };
  std::shared_ptr<const State> state_;
};

Status invalidArgument(std::string message);
Status unsupported(std::string message);
Status unavailable(std::string message);
Status resourceExhausted(std::string message);
Status dataLoss(std::string message);
Status internalError(std::string message);

/// The same with a pattern: invalidArgument("rank {} of {}", rank, size).
template <typename... Args>
  requires(sizeof...(Args) > 0)
Status invalidArgument(FormatPattern<std::type_identity_t<Args>...> pattern, const Args&... arguments) {
  return {StatusCode::kInvalidArgument, formatText(pattern, arguments...)};
}
template <typename... Args>
  requires(sizeof...(Args) > 0)
Status unsupported(FormatPattern<std::type_identity_t<Args>...> pattern, const Args&... arguments) {
  return {StatusCode::kUnsupported, formatText(pattern, arguments...)};
}
template <typename... Args>
  requires(sizeof...(Args) > 0)
Status unavailable(FormatPattern<std::type_identity_t<Args>...> pattern, const Args&... arguments) {
  return {StatusCode::kUnavailable, formatText(pattern, arguments...)};
}
template <typename... Args>
  requires(sizeof...(Args) > 0)
Status resourceExhausted(FormatPattern<std::type_identity_t<Args>...> pattern, const Args&... arguments) {
  return {StatusCode::kResourceExhausted, formatText(pattern, arguments...)};
}
template <typename... Args>
  requires(sizeof...(Args) > 0)
Status dataLoss(FormatPattern<std::type_identity_t<Args>...> pattern, const Args&... arguments) {
  return {StatusCode::kDataLoss, formatText(pattern, arguments...)};
}
template <typename... Args>
  requires(sizeof...(Args) > 0)
Status internalError(FormatPattern<std::type_identity_t<Args>...> pattern, const Args&... arguments) {
  return {StatusCode::kInternal, formatText(pattern, arguments...)};
}

/// A T, or the Status that explains why there is none.
template <typename T>
class [[nodiscard]] StatusOr {
 public:
  StatusOr(T value) : value_(std::move(value)) {}
  /// Requires: status is not ok.
  StatusOr(Status status) : status_(std::move(status)) {
    AG_CHECK(!status_.isOk(), "StatusOr needs a value or a failure");
  }

  bool hasValue() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  /// Requires: hasValue().
  T& value() & {
    AG_CHECK(hasValue(), status_.toString());
    return *value_;
  }
  const T& value() const& {
    AG_CHECK(hasValue(), status_.toString());
    return *value_;
  }
  T&& value() && {
    AG_CHECK(hasValue(), status_.toString());
    return *std::move(value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace agspeed

#define AG_CONCAT_INNER(a, b) a##b
#define AG_CONCAT(a, b) AG_CONCAT_INNER(a, b)

/// Returns the Status of `expr` from the enclosing function unless it is ok.
#define AG_RETURN_IF_ERROR(expr)                                 \
  do {                                                           \
    if (::agspeed::Status agStatus = (expr); !agStatus.isOk()) { \
      return agStatus;                                           \
    }                                                            \
  } while (false)

/// AG_ASSIGN_OR_RETURN(auto x, makeX()): assigns the value, or returns the Status.
#define AG_ASSIGN_OR_RETURN(lhs, expr) AG_ASSIGN_OR_RETURN_IMPL(AG_CONCAT(agResult, __LINE__), lhs, expr)
#define AG_ASSIGN_OR_RETURN_IMPL(result, lhs, expr) \
  auto result = (expr);                             \
  if (!result.hasValue()) {                         \
    return result.status();                         \
  }                                                 \
  lhs = std::move(result).value()
