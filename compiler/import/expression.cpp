// SPDX-License-Identifier: Apache-2.0
#include "compiler/import/expression.h"

#include "compiler/graph/text_reader.h"

namespace agspeed::compiler {
namespace {

class ExpressionEmitter {
 public:
  ExpressionEmitter(std::string_view text, const NamedOperands& names, DType dtype, Emitter& emitter)
      : in_(text), names_(names), dtype_(dtype), emitter_(emitter) {}

  StatusOr<Operand> emit() {
    AG_ASSIGN_OR_RETURN(Operand result, emitComparison());
    if (!in_.atEnd()) return in_.fail("unexpected text in an expression");
    return result;
  }

 private:
  struct Infix {
    std::string_view token;
    PointwiseOp op;
  };

  StatusOr<Operand> emitComparison() {
    // Longer tokens first, so that "<=" is not read as "<".
    constexpr Infix kComparisons[] = {{"<=", PointwiseOp::kLe}, {">=", PointwiseOp::kGe}, {"==", PointwiseOp::kEq},
                                      {"!=", PointwiseOp::kNe}, {"<", PointwiseOp::kLt},  {">", PointwiseOp::kGt}};
    AG_ASSIGN_OR_RETURN(Operand left, emitSum());
    for (const Infix& infix : kComparisons) {
      if (!in_.accept(infix.token)) continue;
      AG_ASSIGN_OR_RETURN(Operand right, emitSum());
      return emitter_.apply(infix.op, {left, right});
    }
    return left;
  }

  StatusOr<Operand> emitSum() {
    AG_ASSIGN_OR_RETURN(Operand left, emitProduct());
    while (true) {
      bool isAdd = in_.accept("+");
      if (!isAdd && !in_.accept("-")) return left;
      AG_ASSIGN_OR_RETURN(Operand right, emitProduct());
      AG_ASSIGN_OR_RETURN(left, emitter_.apply(isAdd ? PointwiseOp::kAdd : PointwiseOp::kSub, {left, right}));
    }
  }

  StatusOr<Operand> emitProduct() {
    AG_ASSIGN_OR_RETURN(Operand left, emitUnary());
    while (true) {
      bool isMul = in_.accept("*");
      if (!isMul && !in_.accept("/")) return left;
      AG_ASSIGN_OR_RETURN(Operand right, emitUnary());
      AG_ASSIGN_OR_RETURN(left, emitter_.apply(isMul ? PointwiseOp::kMul : PointwiseOp::kDiv, {left, right}));
    }
  }

  StatusOr<Operand> emitUnary() {
    if (in_.accept("-")) {
      AG_ASSIGN_OR_RETURN(Operand operand, emitUnary());
      return emitter_.apply(PointwiseOp::kNeg, {operand});
    }
    if (in_.accept("(")) {
      AG_ASSIGN_OR_RETURN(Operand inner, emitComparison());
      AG_RETURN_IF_ERROR(in_.expect(")"));
      return inner;
    }
    if (StatusOr<double> literal = in_.readDouble(); literal.hasValue()) return emitter_.number(*literal, dtype_);
    AG_ASSIGN_OR_RETURN(std::string name, in_.readWord());
    if (in_.accept("(")) return emitFunction(name);
    auto found = names_.find(name);
    if (found == names_.end()) return unsupported("argument \"" + name + "\" has no value");
    return found->second;
  }

  StatusOr<Operand> emitFunction(const std::string& name) {
    std::vector<Operand> inputs;
    do {
      AG_ASSIGN_OR_RETURN(Operand input, emitComparison());
      inputs.push_back(input);
    } while (in_.accept(","));
    AG_RETURN_IF_ERROR(in_.expect(")"));
    if (name == "bool") return emitter_.cast(inputs[0], DType::kBool);
    AG_ASSIGN_OR_RETURN(PointwiseOp op, pointwiseOpFromString(name));
    if (static_cast<size_t>(infoOf(op).arity) != inputs.size()) return in_.fail("wrong number of arguments of " + name);
    return emitter_.apply(op, std::move(inputs));
  }

  TextReader in_;
  const NamedOperands& names_;
  DType dtype_;
  Emitter& emitter_;
};

}  // namespace

StatusOr<Operand> emitExpression(std::string_view expression, const NamedOperands& names, DType dtype,
                                 Emitter& emitter) {
  StatusOr<Operand> result = ExpressionEmitter(expression, names, dtype, emitter).emit();
  if (result.hasValue() || result.status().code() == StatusCode::kUnsupported) return result;
  return internalError("expression \"" + std::string(expression) + "\": " + result.status().message());
}

}  // namespace agspeed::compiler
