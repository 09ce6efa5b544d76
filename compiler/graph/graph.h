// SPDX-License-Identifier: Apache-2.0
// Graph: straight-line SSA over tensors, light enough to build, copy and rewrite in microseconds. No MLIR, no torch.
//
//   graph
//   symbols s0=8
//   %x = input f32[s0,64]
//   %b = input f32[64]
//   %y = add %x, %b : f32[s0,64] @"add_3"
//   %w = call "aten.mm.default"(%y, %x) : f32[s0,64] @"mm" because "it has no native form"
//   return %w
//
// Nodes are in execution order. A node is one PointwiseOp over broadcast inputs, a reduction of trailing dimensions, a
// sum of leading ones (sum_rows, see Node::blockRows), a call of an ATen operator, a join of parts, or the launch of a
// kernel, whose Cluster the graph owns. Fusion makes launches, and the importer makes launches of window operators
// (window.h). `origin` keeps the names of the FX nodes that a node came from, so that plans and reports can refer to
// FX.
//
// Views: a call with a viewOffset returns a view of its input. The view's own strides step through the input's memory.
// Kernels read through such views, and no operator is called for them.
//
// Parts: a join names values that together cover its result. They lie in the result's memory from the start, so a join
// does nothing at run time. A part is the result of one native node, it has the strides of the joined tensor, and
// only its join reads it:
//
//   %l = cast %x : f32[4,3]{5,1}
//   %r = exp %y : f32[4,2]{5,1}
//   %d = join %l at [0], %r at [3] : f32[4,5]       # the tensor of torch.cat([x, y.exp()], 1)
//
// Effects: a node that mutates, draws random numbers or is opaque is never dropped or duplicated. It is never moved
// across another such node or across a node that touches the same memory (see passes/graph/dependencies.h).
// Ownership: all objects are plain values; copy them to keep them. Thread-safety: const access only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compiler/graph/cluster.h"
#include "compiler/graph/tensor_type.h"
#include "runtime/base/device.h"

namespace agspeed::compiler {

using ValueId = int32_t;
constexpr ValueId kNoValue = -1;

enum class NodeKind : uint8_t { kPointwise, kReduce, kCall, kJoin, kKernel };

/// Argument of a call, as in the operator's schema.
struct Argument {
  enum class Kind : uint8_t { kNone, kBool, kInteger, kFloat, kString, kDType, kValue, kList };
  Kind kind = Kind::kNone;
  bool boolean = false;
  SymExpr integer;
  double number = 0;
  std::string text;
  DType dtype = DType::kF32;
  int32_t input = 0;            ///< kValue: position in Node::inputs
  std::vector<Argument> items;  ///< kList
  std::string name;             ///< keyword; empty: positional

  static Argument ofBool(bool value);
  static Argument ofInteger(SymExpr value);
  static Argument ofFloat(double value);
  static Argument ofString(std::string value);
  static Argument ofDType(DType value);
  static Argument ofInput(int32_t position);
  static Argument ofList(std::vector<Argument> items);
};

struct Effects {
  bool isRandom = false;         ///< draws from the generator
  bool isOpaque = false;         ///< unknown operator: may do anything to its inputs, and may alias them
  bool mayAlias = false;         ///< results may share memory with inputs
  std::vector<int32_t> mutates;  ///< positions in Node::inputs written in place

  bool isPure() const { return !isRandom && !isOpaque && mutates.empty(); }
};

struct Node {
  NodeKind kind = NodeKind::kPointwise;
  std::vector<ValueId> inputs;
  std::vector<ValueId> results;  ///< kNoValue: a result that is None
  std::string origin;            ///< FX node names, comma separated
  Effects effects;

  PointwiseOp op = PointwiseOp::kCast;  ///< kPointwise, kReduce
  double constant = 0;                  ///< op == kConstant
  int32_t numReducedDims = 0;           ///< kReduce: how many trailing dimensions, or leading ones for kSumRows
  /// For a kReduce of kSumRows: the result has a first dimension of blocks of this many rows (the last one may be
  /// shorter). 0: there is one block, and no such dimension.
  SymExpr blockRows;

  std::string target;  ///< kCall: "aten.mm.default"
  std::vector<Argument> arguments;
  std::string reason;  ///< kCall: why it is not part of a kernel, as the end of a sentence; empty if not known
  /// For a kCall of a view: the elements in memory between the first ones of the input and of the result. nullopt: the
  /// call is not a view, or kernels cannot read through it.
  std::optional<SymExpr> viewOffset;
  /// For a kCall with a viewOffset: for each result dimension the input dimension that it runs along, or -1 for a new
  /// one (size 1 or broadcast). nullopt: the dimensions are regrouped.
  std::optional<std::vector<int32_t>> viewDims;

  int32_t cluster = -1;  ///< kKernel: index into Graph::clusters; inputs and results are its operands in order
  Dims integers;         ///< kKernel: the launch's integer table, see cluster.h
  /// kJoin: per part, the elements between the first ones of the result and of the part. kKernel: per operand, the
  /// elements between the first one of its value (for a part: of the joined tensor) and the one at which the kernel
  /// begins; empty if all are 0.
  Dims offsets;
  SymExpr extent;
  SymExpr grain;
};

struct Value {
  std::string name;  ///< unique
  TensorType type;
  bool isScalar = false;  ///< an integer, not a tensor
  SymExpr scalar;         ///< its value
  bool isOnHost = false;  ///< a tensor on the CPU in a graph for another device; only calls use it
};

struct Graph {
  Device device;  ///< of all tensors that are not isOnHost
  std::vector<Value> values;
  std::vector<Node> nodes;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;  ///< kNoValue: None
  std::vector<int64_t> hints;    ///< by symbol index: a typical value
  std::vector<Cluster> clusters;

  const TensorType& typeOf(ValueId value) const { return values[value].type; }
  /// Requires: no value has this name.
  ValueId addValue(std::string name, TensorType type);
  /// Adds a tensor value called "<base>.<id>".
  ValueId addTemporary(const std::string& base, TensorType type);
  ValueId addScalar(std::string name, SymExpr scalar);
};

/// The text form; parseGraph reads it back.
std::string toString(const Graph& graph);
/// Errors: kInternal naming the node and the broken rule (order, arity, dtypes, shapes, effects).
Status verify(const Graph& graph);

/// Errors: kInvalidArgument with line and column.
StatusOr<Graph> parseGraph(std::string_view text);

/// Index of the node that produces each value, -1 for inputs and scalars.
std::vector<int32_t> producersOf(const Graph& graph);
/// Sorted indices of the nodes that read each value.
std::vector<std::vector<int32_t>> usersOf(const Graph& graph);
/// By value: the join that it is a part of, -1 for values that are no parts.
std::vector<int32_t> joinsOf(const Graph& graph);
/// Marks the values that the graph returns.
std::vector<bool> outputMask(const Graph& graph);
/// The class of each value. Values of one class may share memory (through views and opaque calls).
std::vector<int32_t> aliasClassesOf(const Graph& graph);
/// Joins two comma-separated origin lists without duplicates.
std::string joinOrigins(const std::string& a, const std::string& b);

}  // namespace agspeed::compiler
