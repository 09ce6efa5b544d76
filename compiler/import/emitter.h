// SPDX-License-Identifier: Apache-2.0
// Emitter: builds the element-wise and reduction nodes of one imported operator. It folds constants, keeps the typing
// rules of cluster.h (small floats compute in f32, bool arithmetic becomes logic) and chooses layouts for intermediate
// values.
//
// An Operand is a term of an expression: a number that is not in the graph yet, or a value of the graph. An Emitter
// lives for the import of one node; it does not own the graph.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "compiler/graph/graph.h"
#include "compiler/import/view_geometry.h"
#include "runtime/base/status.h"

namespace agspeed::compiler {

struct Operand {
  bool isNumber = false;
  double number = 0;
  ValueId value = kNoValue;
  DType dtype = DType::kF32;
};

class Emitter {
 public:
  /// `layout`: intermediate values of the same sizes get its strides, so that results need no copy.
  Emitter(Graph& graph, std::string origin, TensorType layout)
      : graph_(graph), origin_(std::move(origin)), layout_(std::move(layout)) {}

  const TensorType& layout() const { return layout_; }
  const TensorType& typeOf(ValueId value) const { return graph_.typeOf(value); }
  Graph& graph() { return graph_; }
  const Graph& graph() const { return graph_; }
  const std::string& origin() const { return origin_; }

  /// A number, rounded to what `dtype` holds.
  Operand number(double value, DType dtype) const;
  Operand use(ValueId value) const { return {.value = value, .dtype = graph_.typeOf(value).dtype}; }
  /// Converts. A cast of a tensor gets the layout's sizes if it broadcasts to them, so that it fuses with its users.
  Operand cast(const Operand& a, DType dtype);
  /// Converts at the operand's own sizes. Requires: a is a value.
  Operand convert(const Operand& a, DType dtype);
  /// Applies op to operands of one dtype (for where: a bool first). Errors: kUnsupported if the dtype has no such
  /// operation.
  StatusOr<Operand> apply(PointwiseOp op, std::vector<Operand> inputs);
  /// Reduces the trailing dimensions. keepDims: keeps them with size 1. Long rows are summed in two steps, so that
  /// threads share them and chains of additions stay short.
  Operand reduce(PointwiseOp op, const Operand& a, size_t numDims, bool keepDims);
  /// How many of numDims trailing dimensions the first step of a long sum reduces; 0: there is only one step.
  size_t firstStepDims(const Dims& sizes, size_t numDims) const;
  /// Sums the first dimensions, in blocks of rows whose sums are summed again. The result has numOnes dimensions of
  /// size 1, then the remaining dimensions.
  Operand sumRows(const Operand& a, size_t numDims, size_t numOnes);
  /// A view of `source` by a call of the given view operator; `geometry` is the operator's.
  ValueId view(std::string target, ValueId source, std::vector<Argument> arguments, const ViewGeometry& geometry,
               const TensorType& type);
  struct Part {
    Operand value;
    TensorType type;  ///< sizes of the part, with the strides of the joined tensor
    SymExpr offset;   ///< of its first element in the joined tensor
  };
  /// A value of exactly `type` that consists of the parts, converted to its dtype. Requires: they cover it once.
  ValueId join(const std::vector<Part>& parts, const TensorType& type, const std::string& name);
  /// A view with numDims more dimensions of size 1 at the end.
  Operand unsqueezeLast(const Operand& a, size_t numDims);
  /// A copy of the operand with exactly these sizes, to which it broadcasts, and strides. Requires: it is a value.
  Operand copy(const Operand& a, const TensorType& type);
  /// The operand as a value of exactly `type`, produced by this operator (never one of its inputs).
  ValueId materialize(const Operand& a, const TensorType& type, const std::string& name);
  /// An ATen call whose results have the given types; inputs are numbered by the arguments.
  std::vector<ValueId> call(std::string target, std::vector<ValueId> inputs, std::vector<Argument> arguments,
                            const std::vector<TensorType>& types);
  /// A number of type dtype that is known only at run time.
  Operand symbol(const SymExpr& expr, DType dtype);

 private:
  ValueId addNode(PointwiseOp op, std::vector<ValueId> inputs, TensorType type);
  ValueId place(const Operand& a);
  TensorType typeFor(DType dtype, const Dims& sizes) const;

  Graph& graph_;
  std::string origin_;
  TensorType layout_;
  size_t firstOwnNode_ = graph_.nodes.size();
  std::set<ValueId> materialized_;
};

}  // namespace agspeed::compiler
