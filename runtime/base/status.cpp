// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/status.h"

namespace agspeed {

std::string_view toString(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid argument";
    case StatusCode::kUnsupported: return "unsupported";
    case StatusCode::kUnavailable: return "unavailable";
    case StatusCode::kResourceExhausted: return "resource exhausted";
    case StatusCode::kDataLoss: return "data loss";
    case StatusCode::kInternal: return "internal error";
  }
  return "unknown";
}

Status::Status(StatusCode code, std::string message)
    : state_(code == StatusCode::kOk ? nullptr : std::make_shared<const State>(State{code, std::move(message)})) {}

const std::string& Status::message() const {
  static const std::string kEmpty;
  return state_ ? state_->message : kEmpty;
}

std::string Status::toString() const {
  if (isOk()) return "ok";
  return std::string(agspeed::toString(code())) + ": " + message();
}

Status Status::withContext(std::string_view context) const {
  if (isOk()) return *this;
  return Status(code(), std::string(context) + ": " + message());
}

Status invalidArgument(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }
Status unsupported(std::string message) { return {StatusCode::kUnsupported, std::move(message)}; }
Status unavailable(std::string message) { return {StatusCode::kUnavailable, std::move(message)}; }
Status resourceExhausted(std::string message) { return {StatusCode::kResourceExhausted, std::move(message)}; }
Status dataLoss(std::string message) { return {StatusCode::kDataLoss, std::move(message)}; }
Status internalError(std::string message) { return {StatusCode::kInternal, std::move(message)}; }

}  // namespace agspeed
