// SPDX-License-Identifier: Apache-2.0
#include "comm/reduce/reduce_op.h"

#include <bit>
#include <string>

namespace agspeed::comm::reduce {

std::string_view toString(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return "sum";
    case ReduceOp::kProduct: return "product";
    case ReduceOp::kMin: return "min";
    case ReduceOp::kMax: return "max";
    case ReduceOp::kBitAnd: return "bitwise and";
    case ReduceOp::kBitOr: return "bitwise or";
    case ReduceOp::kBitXor: return "bitwise xor";
    case ReduceOp::kAverage: return "average";
    case ReduceOp::kPremultipliedSum: return "premultiplied sum";
  }
  return "unknown";
}

Status checkReduction(ReduceOp op, DType dtype) {
  const bool isBitwise = op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
  const bool isScaled = op == ReduceOp::kAverage || op == ReduceOp::kPremultipliedSum;
  const bool isComplex = dtype == DType::kC64 || dtype == DType::kC128;
  if (!isComplex && !(isBitwise && isFloat(dtype)) && !(isScaled && dtype == DType::kBool)) return {};
  return invalidArgument("the reduction '" + std::string(toString(op)) + "' is not defined for tensors of " +
                         std::string(agspeed::toString(dtype)) + "; convert them or choose another reduction");
}

DType accumulatorOf(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16 ? DType::kF32 : dtype; }

CanonicalTree::CanonicalTree(int numLeaves)
    : numPositions(static_cast<int>(std::bit_floor(static_cast<unsigned>(numLeaves)))),
      numPairs(numLeaves - numPositions) {}

}  // namespace agspeed::comm::reduce
