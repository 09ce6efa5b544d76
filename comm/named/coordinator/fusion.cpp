// SPDX-License-Identifier: Apache-2.0
#include "comm/named/coordinator/fusion.h"

namespace agspeed::comm::coordinator {
namespace {

/// A tensor of kLargeBytes or more runs alone, on the caller's memory.
constexpr size_t kLargeBytes = size_t{512} << 10;

}  // namespace

std::string_view toString(FusionOrder order) {
  switch (order) {
    case FusionOrder::kTime: return "time";
    case FusionOrder::kSize: return "size";
    case FusionOrder::kPriority: return "priority";
    case FusionOrder::kModel: return "model";
  }
  return "unknown order";
}

bool isFusable(named::NamedKind kind) { return rowsOf(kind) == named::NamedRows::kSame; }

bool canFuse(const named::Request& left, const named::Request& right) {
  if (!isFusable(left.kind)) return false;
  return left.kind == right.kind && left.dtype == right.dtype && left.reduction == right.reduction &&
         left.root == right.root && left.prescale == right.prescale && left.postscale == right.postscale &&
         left.isOnDevice == right.isOnDevice;
}

bool runsAlone(const named::Request& request, size_t numBytes) {
  return request.shapes.size() == 1 && numBytes >= kLargeBytes;
}

}  // namespace agspeed::comm::coordinator
