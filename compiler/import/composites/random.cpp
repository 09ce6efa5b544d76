// SPDX-License-Identifier: Apache-2.0
// Builder of dropout. The mask is a call of an operator of the runtime, which draws the same numbers as eager, in the
// same order (runtime/aten/random_draws.h). Masking and scaling become nodes that fuse with their neighbours. On a GPU
// eager's dropout draws like no other operator, so it stays a call as a whole.
#include "compiler/import/op_table.h"

namespace agspeed::compiler {
namespace {

// For p == 1 eager draws nothing: torch.nn.functional.dropout multiplies by zero.
Status dropAll(OpImport& op) {
  Emitter& emitter = op.emitter();
  const DType compute = computeType(op.typeOf("x").dtype);
  Operand x = emitter.cast(emitter.use(op.tensor("x")), compute);
  AG_ASSIGN_OR_RETURN(Operand zeros, emitter.apply(PointwiseOp::kMul, {x, emitter.number(0, compute)}));
  AG_RETURN_IF_ERROR(op.setResult(zeros, 0));
  return op.setResult(emitter.number(0, DType::kBool), 1);
}

}  // namespace

Status buildDropout(OpImport& op) {
  AG_ASSIGN_OR_RETURN(TensorType maskType, op.resultType(1));
  AG_ASSIGN_OR_RETURN(double probability, op.number("p"));
  if (!op.isTensor("x") || !op.flag("train")) return unsupported("dropout outside training");
  if (!op.emitter().graph().device.isHost()) return unsupported("the draws of a GPU's dropout");
  if (probability == 1) return dropAll(op);
  if (probability <= 0) return unsupported("dropout that keeps all");
  const TensorType type = op.typeOf("x");
  if (type.dtype != DType::kF32 && type.dtype != DType::kF64) return unsupported("dropout of another precision");
  if (!isContiguous(type) || !isContiguous(maskType)) return unsupported("the order of the draws follows the strides");
  Emitter& emitter = op.emitter();
  std::vector<Argument> sizes;
  for (const SymExpr& size : type.sizes) sizes.push_back(Argument::ofInteger(size));
  ValueId drawn = emitter.call("agspeed.bernoulli_mask.default", {},
                               {Argument::ofList(sizes), Argument::ofFloat(1 - probability)}, {maskType})[0];
  Node& call = emitter.graph().nodes.back();
  call.effects.isRandom = true;
  call.reason = "it draws random numbers in eager's order";
  AG_ASSIGN_OR_RETURN(Operand kept, emitter.apply(PointwiseOp::kMul, {emitter.use(op.tensor("x")),
                                                                      emitter.cast(emitter.use(drawn), type.dtype)}));
  Operand scale = emitter.number(1 / (1 - probability), type.dtype);
  AG_ASSIGN_OR_RETURN(Operand scaled, emitter.apply(PointwiseOp::kMul, {kept, scale}));
  AG_RETURN_IF_ERROR(op.setResult(scaled, 0));
  op.setResultValue(drawn, 1);
  return {};
}

}  // namespace agspeed::compiler
