// SPDX-License-Identifier: Apache-2.0
// The rules for which operations run together in one response, and in what order. FusionPlan has the rules that can be
// configured. The functions are rules that always apply.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "comm/named/request.h"

namespace agspeed::comm::coordinator {

/// The order in which ready operations run.
enum class FusionOrder : uint8_t {
  kTime,      ///< runs operations in the order in which they became ready
  kSize,      ///< like kTime, but waits up to 2 ms for more operations while the buffer is not full
  kPriority,  ///< runs operations in the order of Request::priority, the highest first
  kModel,     ///< runs operations in the order in which their names first became ready
};

/// Returns "time", "size", "priority" or "model".
std::string_view toString(FusionOrder order);

/// States how operations are fused. A plan never changes a result, because the result of an element does not depend on
/// the buffer that contains it. So the plan may change between any two responses, and only the coordinator needs one.
struct FusionPlan {
  size_t fusionBytes = size_t{32} << 20;  ///< maximum size of a fused response; 0: nothing is fused
  FusionOrder order = FusionOrder::kTime;
  uint32_t version = 0;  ///< chosen by the caller, for NamedStats::planVersion
};

/// Returns whether operations of this kind can be fused at all.
bool isFusable(named::NamedKind kind);
/// Returns whether two operations may be in one response.
bool canFuse(const named::Request& left, const named::Request& right);
/// Returns whether an operation of `numBytes` is a single tensor that is too large to be fused.
bool runsAlone(const named::Request& request, size_t numBytes);

}  // namespace agspeed::comm::coordinator
