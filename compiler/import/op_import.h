// SPDX-License-Identifier: Apache-2.0
// OpImport: one spec node that is being imported: its arguments by parameter name, and an Emitter for its nodes. The
// builders of op_table.def get it. It lives for one node and owns only the bound arguments.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/import/emitter.h"
#include "compiler/import/promotion.h"
#include "compiler/import/spec_reader.h"

namespace agspeed::compiler {

/// The graph values of an earlier spec node.
struct Binding {
  std::vector<ValueId> values;  ///< one value, or the elements of a tuple
  std::optional<SymExpr> scalar;
  bool isFloat = false;                  ///< a Python float made from sizes: the value is a 0-d f64 tensor
  const SpecNode* definition = nullptr;  ///< set for operators
  int numReaders = 0;                    ///< how many arguments of later spec nodes refer to it
};
using Bindings = std::map<std::string, Binding, std::less<>>;

class OpImport {
 public:
  OpImport(Graph& graph, const Bindings& bindings, const SpecNode& node);

  /// Binds arguments to "self, alpha=1, mode='none'". A parameter may carry a kind after a colon: ":bool" (a mask),
  /// ":rounded" (a number that ATen rounds to the tensors' dtype before it computes).
  /// Errors: kUnsupported if the node passes an argument outside the list, or a tensor on another device.
  Status bind(std::string_view parameters);

  const SpecNode& node() const { return node_; }
  Emitter& emitter() { return emitter_; }
  const std::vector<std::string>& parameters() const { return parameters_; }

  bool isNone(const std::string& parameter) const;
  bool isTensor(const std::string& parameter) const;
  /// Requires: isTensor(parameter).
  ValueId tensor(const std::string& parameter) const;
  const TensorType& typeOf(const std::string& parameter) { return emitter_.graph().typeOf(tensor(parameter)); }
  /// The tensor around which a node puts zeros to make this one, if no other node reads this one and the graph changes
  /// no tensor in place.
  struct Padded {
    ValueId inner;
    std::vector<int64_t> sides;  ///< none is negative: before and after the last dimension, then of the one before, ...
  };
  std::optional<Padded> padded(const std::string& parameter);
  /// The tensors of a list. Errors: kUnsupported if it holds something else, or a tensor on another device.
  StatusOr<std::vector<ValueId>> tensors(const std::string& parameter) const;
  /// Errors (of this and the readers below): kUnsupported if the argument is not of that kind.
  StatusOr<double> number(const std::string& parameter) const;
  StatusOr<int64_t> integer(const std::string& parameter) const;
  StatusOr<std::vector<int64_t>> integers(const std::string& parameter) const;
  bool flag(const std::string& parameter) const;
  std::string text(const std::string& parameter) const;

  /// The dtype to which ATen promotes the arguments: all tensors and numbers except masks.
  StatusOr<DType> commonType() const;
  /// The argument converted to `common`, then to `compute`. Numbers convert to `compute` directly unless ":rounded".
  StatusOr<Operand> operand(const std::string& parameter, DType common, DType compute);

  /// Type of the index-th result. Errors: kUnsupported if it is not a dense tensor on the graph's device.
  StatusOr<TensorType> resultType(size_t index = 0) const;
  size_t numResults() const { return results_.size(); }
  /// The name of the index-th result's value.
  std::string resultName(size_t index = 0) const;
  /// False for a result of a tuple that the caller has masked out.
  bool isResultWanted(size_t index) const;
  /// Declares the index-th result. Results not set are None.
  Status setResult(const Operand& operand, size_t index = 0);
  void setResultValue(ValueId value, size_t index);
  const std::vector<ValueId>& results() const { return results_; }

 private:
  const SpecArg* find(const std::string& parameter) const;
  std::optional<SymExpr> scalarOf(const SpecArg& arg) const;

  const Bindings& bindings_;
  const SpecNode& node_;
  Emitter emitter_;
  std::vector<std::string> parameters_;
  std::map<std::string, std::string> kinds_;
  std::map<std::string, SpecArg> arguments_;
  std::vector<ValueId> results_;
};

}  // namespace agspeed::compiler
