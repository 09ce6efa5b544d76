// SPDX-License-Identifier: Apache-2.0
// Cluster: a fused group of element-wise operations and reductions that becomes one kernel. Pure data; the interface
// between fusion planning (passes/graph) and code generation (compiler/kernel). No MLIR here.
//
// Iteration space: `rank` outer dimensions, then one innermost dimension ("columns"). A row is one point of the outer
// dimensions. Every node has one of two shapes: per element (rows x columns) or per row (a reduction's result and
// values computed from it alone). Sizes and strides are run-time integers, so one kernel serves every size.
//
//   softmax:  n0 = load(op0)            element
//             n1 = reduce_max(n0)       row
//             n2 = sub(n0, n1)          element
//             n3 = exp(n2)              element
//             n4 = reduce_sum(n3)       row
//             n5 = div(n3, n4)          element
//             store(n5 -> op1)
//
// The generator splits the nodes into phases: a reduction ends a phase, and later phases recompute or reload the values
// they need. Integer table of a launch (KernelCall::integers): outer sizes [rank], columns, then per operand its outer
// strides [rank] and its column stride, in elements. Extent: the number of rows if rank > 0, else the columns. A
// cluster with a reduction has rank > 0, so a slice always holds whole rows.
//
// Sums over rows: sum_rows adds an element node up over the rows of a block, column by column. Its value can only be
// stored, to a "block" operand of [blocks, columns]. Such a cluster has one more integer at the end of the table, the
// rows per block, and its extent counts blocks. A block operand's first outer stride is the step from block to block;
// its other outer strides are 0. The table sets the length of blocks, so the bits of a sum do not depend on threads.
//
// Window operators: a cluster with a window has operands alone, and its own meaning of sizes and extent (window.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/graph/window.h"
#include "runtime/base/dtype.h"
#include "runtime/base/status.h"

namespace agspeed::compiler {

/// Types: the inputs and the result of arithmetic share one dtype, never bf16, f16 or bool (casts to and from f32 are
/// explicit nodes). Comparisons take two equal dtypes and give bool; logical operations take and give bool; where takes
/// (bool, T, T). A cast to bool is x != 0; isnan and isinf give bool. bf16, f16 and bool values are only loaded, cast,
/// selected and stored.
/// Shapes: a row node uses only row nodes; an element node uses both, or only row nodes. A constant is a row node.
///
/// The operation of a node. Unary, binary and ternary operations follow ATen's semantics for their dtype (NaN
/// propagation of minimum/maximum, Python-style remainder, true division). kPointwiseOps (cluster.cpp) has one row for
/// each.
enum class PointwiseOp : uint8_t {
  kLoad,
  kConstant,
  kCast,
  // unary
  kAbs,
  kNeg,
  kExp,
  kExp2,
  kExpm1,
  kLog,
  kLog2,
  kLog10,
  kLog1p,
  kSqrt,
  kRsqrt,
  kReciprocal,
  kSin,
  kCos,
  kTan,
  kAsin,
  kAcos,
  kAtan,
  kSinh,
  kCosh,
  kTanh,
  kAsinh,
  kAcosh,
  kAtanh,
  kErf,
  kErfc,
  kSigmoid,
  kRelu,
  kFloor,
  kCeil,
  kRound,
  kTrunc,
  kSign,
  kLogicalNot,
  kBitwiseNot,
  kIsNan,
  kIsInf,
  // binary
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kRemainder,
  kFmod,
  kPow,
  kAtan2,
  kMaximum,
  kMinimum,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kLogicalAnd,
  kLogicalOr,
  kLogicalXor,
  kBitwiseAnd,
  kBitwiseOr,
  kBitwiseXor,
  kShiftLeft,
  kShiftRight,
  // ternary
  kWhere,
  kFma,
  // reductions over the columns
  kReduceSum,
  kReduceMax,
  kReduceMin,
  kReduceProd,
  // sum over the rows of a block
  kSumRows,
};

struct OpInfo {
  PointwiseOp op;
  std::string_view name;  ///< "add", "reduce_sum", ...
  int arity;
  bool isReduction;  ///< over the columns
};

const OpInfo& infoOf(PointwiseOp op);
StatusOr<PointwiseOp> pointwiseOpFromString(std::string_view name);
/// Checks number and dtypes of a node's inputs. Errors: kInvalidArgument that states the broken rule.
Status checkTyping(PointwiseOp op, DType result, const std::vector<DType>& inputs);

/// The most columns of a launch with transposed operands, because its rows lie on the stack.
constexpr int64_t kMostTransposedColumns = 1024;

/// A tensor that the kernel reads or writes.
struct ClusterOperand {
  DType dtype = DType::kF32;
  bool isOutput = false;
  enum class Columns : uint8_t { kContiguous, kBroadcast, kStrided, kTransposed };
  /// Column stride 1, 0, or any value. It is fixed at compile time because it selects the load instruction. Transposed:
  /// the columns have any stride, and the last outer dimension has stride 1.
  Columns columns = Columns::kContiguous;
  /// True for an operand with one element per row (a stored row value, or a load that is broadcast over columns).
  bool isPerRow = false;
  /// True for an output with one row per block: the result of a sum over rows.
  bool isPerBlock = false;
};

struct ClusterNode {
  PointwiseOp op = PointwiseOp::kLoad;
  DType dtype = DType::kF32;    ///< of the result; arithmetic on bf16/f16 is done in f32 and rounded at casts/stores
  std::vector<int32_t> inputs;  ///< indices of earlier nodes
  int32_t operand = -1;         ///< kLoad: index into operands
  double constant = 0;          ///< kConstant (exact for integers up to 2^53)
  bool isPerRow = false;
};

/// Writes a node's value to an output operand of the same dtype and of the same shape class.
struct ClusterStore {
  int32_t node = 0;
  int32_t operand = 0;
};

struct Cluster {
  int32_t outerRank = 0;
  std::vector<ClusterOperand> operands;
  std::vector<ClusterNode> nodes;  ///< in execution order
  std::vector<ClusterStore> stores;
  std::optional<Window> window;  ///< the whole kernel, instead of nodes and stores; see window.h

  bool hasReduction() const;
  /// Whether the extent counts blocks of rows.
  bool sumsRows() const;
  /// Canonical text. Equal kernels have equal text, so the object cache hashes it. parse() reads it back.
  std::string toString() const;
  /// Name of the kernel: "ag_kernel_", its first operations and a hash of its text, such as
  /// "ag_kernel_mul_add_relu_3f2a91c05be86d47". It is the symbol of the machine code and the name in profiles.
  std::string name() const;
  static StatusOr<Cluster> parse(std::string_view text);
  /// Errors: kInvalidArgument with the first broken rule (order, arity, dtype, shape class, index out of range).
  Status verify() const;
};

}  // namespace agspeed::compiler
