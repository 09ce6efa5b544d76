// SPDX-License-Identifier: Apache-2.0
// The import table: one row per ATen overload that becomes native nodes. Everything else imports as an external call.
#pragma once

#include <span>
#include <string_view>

#include "compiler/import/op_import.h"

namespace agspeed::compiler {

/// In which dtype a row's expression computes; see op_table.def.
enum class ComputeIn : uint8_t { kResult, kFloat, kInputs };

struct OpRow {
  std::string_view target;
  ComputeIn computeIn = ComputeIn::kResult;
  std::string_view parameters;
  std::string_view expression;              ///< empty for rows with a builder
  Status (*build)(OpImport& op) = nullptr;  ///< emits nodes and sets results; kUnsupported: import as a call instead
};

std::span<const OpRow> opTable();
/// Nullptr when the operator has no row.
const OpRow* findOp(std::string_view target);
/// Emits the row's nodes. Errors: kUnsupported: import as a call instead.
Status buildOp(const OpRow& row, OpImport& op);

// Builders named by op_table.def, by theme; each file says what it emits.
Status buildAdd(OpImport& op);  // composites_arithmetic.cpp
Status buildSub(OpImport& op);
Status buildRsub(OpImport& op);
Status buildDivMode(OpImport& op);
Status buildClamp(OpImport& op);
Status buildPowScalar(OpImport& op);
Status buildLerp(OpImport& op);
Status buildGelu(OpImport& op);  // composites_activation.cpp
Status buildGeluBackward(OpImport& op);
Status buildEluBackward(OpImport& op);
Status buildLogSigmoidForward(OpImport& op);
Status buildLogit(OpImport& op);
Status buildNanToNum(OpImport& op);
Status buildPreluBackward(OpImport& op);
Status buildCast(OpImport& op);  // composites_creation.cpp
Status buildFull(OpImport& op);
Status buildZeros(OpImport& op);
Status buildOnes(OpImport& op);
Status buildSum(OpImport& op);  // composites_reduction.cpp
Status buildMean(OpImport& op);
Status buildMax(OpImport& op);
Status buildMin(OpImport& op);
Status buildAny(OpImport& op);
Status buildAll(OpImport& op);
Status buildVar(OpImport& op);
Status buildVarMean(OpImport& op);
Status buildSoftmax(OpImport& op);  // composites_softmax.cpp
Status buildSafeSoftmax(OpImport& op);
Status buildLogSoftmax(OpImport& op);
Status buildSoftmaxBackward(OpImport& op);
Status buildLogSoftmaxBackward(OpImport& op);
Status buildLayerNorm(OpImport& op);  // composites_norm.cpp
Status buildLayerNormBackward(OpImport& op);
Status buildBatchNorm(OpImport& op);  // composites_batch_norm.cpp
Status buildBatchNormBackward(OpImport& op);
Status buildDropout(OpImport& op);  // composites_random.cpp

}  // namespace agspeed::compiler
