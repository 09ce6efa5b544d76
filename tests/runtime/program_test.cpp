// SPDX-License-Identifier: Apache-2.0
#include "runtime/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/program_builder.h"

namespace agspeed::runtime {
namespace {

using ::testing::HasSubstr;

const TensorType kVector = contiguous(DType::kF32, {SymExpr(4)});

// input -> kernel 0 -> fresh output, which is a valid program.
ProgramBuilder valid() {
  ProgramBuilder b;
  const ValueId x = b.input(kVector);
  const ValueId y = b.fresh(kVector);
  b.kernel(0, {x, y}, {}, SymExpr(4));
  b.program.outputs = {y};
  return b;
}

std::string problem(const Program& program) { return verify(program, 1, 0).message(); }

TEST(ProgramVerify, AcceptsAWellFormedProgram) { EXPECT_EQ(problem(valid().program), ""); }

TEST(ProgramVerify, NamesAKernelOutOfRange) {
  ProgramBuilder b = valid();
  std::get<KernelCall>(b.program.instructions[0].op).kernel = 1;
  EXPECT_THAT(problem(b.program), HasSubstr("kernel 1 of 1"));
}

TEST(ProgramVerify, NamesAnOperandThatDoesNotExist) {
  ProgramBuilder b = valid();
  std::get<KernelCall>(b.program.instructions[0].op).operands = {0, 9};
  EXPECT_THAT(problem(b.program), HasSubstr("does not exist"));
}

TEST(ProgramVerify, RejectsAReadBeforeTheWrite) {
  ProgramBuilder b = valid();
  const ValueId e = b.external(kVector);
  b.kernel(0, {e, 1}, {}, SymExpr(4));
  EXPECT_THAT(problem(b.program), HasSubstr("read before it is written"));
}

TEST(ProgramVerify, AViewIsReadAfterItIsMadeAndReleased) {
  ProgramBuilder b = valid();
  const ValueId v = b.view(1, kVector, 0);
  b.call("aten.neg.default", {tensorArg(v)}, {b.external(kVector)});
  b.release(v);
  EXPECT_EQ(problem(b.program), "");
  std::swap(b.program.instructions[1], b.program.instructions[2]);
  EXPECT_THAT(problem(b.program), HasSubstr("value v2 is read before it is written"));
}

TEST(ProgramVerify, RejectsAViewOfAView) {
  ProgramBuilder b = valid();
  b.view(b.view(1, kVector, 0), kVector, 0);
  EXPECT_THAT(problem(b.program), HasSubstr("value v3 is in the memory of no value that owns memory"));
}

TEST(ProgramVerify, RejectsOffsetsOfOtherOperands) {
  ProgramBuilder b = valid();
  std::get<KernelCall>(b.program.instructions[0].op).offsets = {SymExpr(0)};
  EXPECT_THAT(problem(b.program), HasSubstr("1 offsets for 2 operands"));
}

TEST(ProgramVerify, RejectsAReadAfterTheRelease) {
  ProgramBuilder b = valid();
  b.release(1);
  EXPECT_THAT(problem(b.program), HasSubstr("output: "));
}

TEST(ProgramVerify, RejectsAReadAfterAnOutputWasHandedOver) {
  ProgramBuilder b = valid();
  const ValueId output = b.program.outputs[0];
  b.ready({output});
  EXPECT_EQ(problem(b.program), "");
  b.release(output);
  EXPECT_THAT(problem(b.program), HasSubstr("is read after it was handed over"));
}

TEST(ProgramVerify, RejectsHandingOverWhatIsNoOutput) {
  ProgramBuilder b = valid();
  b.ready({b.program.inputs[0]});
  EXPECT_THAT(problem(b.program), HasSubstr("is handed over but is not a tensor output"));
}

TEST(ProgramVerify, RejectsAnOutputInsideTheArena) {
  ProgramBuilder b = valid();
  b.program.outputs = {b.arena(kVector, SymExpr(0))};
  EXPECT_THAT(problem(b.program), HasSubstr("inside the arena"));
}

TEST(ProgramVerify, RejectsReleasingWhatOwnsNothing) {
  ProgramBuilder b = valid();
  b.release(b.arena(kVector, SymExpr(0)));
  EXPECT_THAT(problem(b.program), HasSubstr("owns no memory"));
}

TEST(ProgramVerify, RejectsASymbolBoundToAMissingDimension) {
  ProgramBuilder b = valid();
  b.program.symbols = {{0, 3}};
  EXPECT_THAT(problem(b.program), HasSubstr("dimension 3 of input 0"));
}

TEST(ProgramVerify, RejectsAMissingConstant) {
  ProgramBuilder b = valid();
  b.constant(kVector, 0);
  EXPECT_THAT(problem(b.program), HasSubstr("constant 0 of 0"));
}

}  // namespace
}  // namespace agspeed::runtime
