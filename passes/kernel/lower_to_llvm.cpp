// SPDX-License-Identifier: Apache-2.0
#include "mlir/Conversion/ArithToLLVM/ArithToLLVM.h"
#include "mlir/Conversion/ControlFlowToLLVM/ControlFlowToLLVM.h"
#include "mlir/Conversion/FuncToLLVM/ConvertFuncToLLVM.h"
#include "mlir/Conversion/LLVMCommon/ConversionTarget.h"
#include "mlir/Conversion/LLVMCommon/TypeConverter.h"
#include "mlir/Conversion/MathToLLVM/MathToLLVM.h"
#include "mlir/Conversion/SCFToControlFlow/SCFToControlFlow.h"
#include "mlir/Conversion/UBToLLVM/UBToLLVM.h"
#include "mlir/Conversion/VectorToLLVM/ConvertVectorToLLVM.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Transforms/DialectConversion.h"
#include "passes/kernel/passes.h"

namespace agspeed::passes {

#define GEN_PASS_DEF_LOWERTOLLVMPASS
#include "passes/kernel/passes.h.inc"

namespace {

using namespace mlir;

struct LowerToLLVMPass : impl::LowerToLLVMPassBase<LowerToLLVMPass> {
  void runOnOperation() override {
    MLIRContext& context = getContext();
    LLVMTypeConverter converter(&context);
    LLVMConversionTarget target(context);
    target.addLegalOp<ModuleOp>();
    RewritePatternSet patterns(&context);
    populateSCFToControlFlowConversionPatterns(patterns);
    cf::populateControlFlowToLLVMConversionPatterns(converter, patterns);
    arith::populateArithToLLVMConversionPatterns(converter, patterns);
    populateMathToLLVMConversionPatterns(converter, patterns);
    populateVectorToLLVMConversionPatterns(converter, patterns);
    populateFuncToLLVMConversionPatterns(converter, patterns);
    ub::populateUBToLLVMConversionPatterns(converter, patterns);
    if (failed(applyFullConversion(getOperation(), target, std::move(patterns)))) signalPassFailure();
  }
};

}  // namespace
}  // namespace agspeed::passes
