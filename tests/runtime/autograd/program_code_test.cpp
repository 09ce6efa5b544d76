// SPDX-License-Identifier: Apache-2.0
// A Region over the entries of an Executable, and the programs that a ProgramCode refuses.
#include "runtime/autograd/program_code.h"

#include <gmock/gmock.h>

#include "tests/runtime/autograd/regions.h"
#include "tests/runtime/program_builder.h"

namespace agspeed::runtime::autograd {
namespace {

using ::testing::HasSubstr;
using torch::autograd::grad;

const TensorType kFour = contiguous(DType::kF32, {4});

using Entries = std::map<std::string, Program>;

std::unique_ptr<const RegionCode> load(Entries entries) {
  auto executable = std::make_shared<Executable>();
  executable->entries = std::move(entries);
  auto loaded = aten::AtenExecutable::load(std::move(executable));
  EXPECT_TRUE(loaded.hasValue()) << loaded.status().message();
  auto code = ProgramCode::create(*loaded);
  EXPECT_TRUE(code.hasValue()) << code.status().message();
  return *std::move(code);
}

// y = sin(x) * w; x and w are saved.
Program sineProductProgram() {
  ProgramBuilder b;
  const ValueId x = b.input(kFour), w = b.input(kFour), sine = b.external(kFour), y = b.external(kFour);
  b.call("aten.sin.default", {tensorArg(x)}, {sine});
  b.call("aten.mul.Tensor", {tensorArg(sine), tensorArg(w)}, {y});
  b.program.outputs = {y, x, w};
  return b.program;
}

Program sineProductGradients() {
  ProgramBuilder b;
  const ValueId x = b.input(kFour), w = b.input(kFour), tangent = b.input(kFour);
  const ValueId sine = b.external(kFour), cosine = b.external(kFour), scaled = b.external(kFour);
  const ValueId ofX = b.external(kFour), ofW = b.external(kFour);
  b.call("aten.sin.default", {tensorArg(x)}, {sine});
  b.call("aten.cos.default", {tensorArg(x)}, {cosine});
  b.call("aten.mul.Tensor", {tensorArg(tangent), tensorArg(w)}, {scaled});
  b.call("aten.mul.Tensor", {tensorArg(scaled), tensorArg(cosine)}, {ofX});
  b.call("aten.mul.Tensor", {tensorArg(tangent), tensorArg(sine)}, {ofW});
  b.program.outputs = {ofX, ofW};
  return b.program;
}

// The gradient of w leaves before the gradient of x is computed.
Program stagedSineProductGradients() {
  ProgramBuilder b;
  const ValueId x = b.input(kFour), w = b.input(kFour), tangent = b.input(kFour);
  const ValueId sine = b.external(kFour), cosine = b.external(kFour), scaled = b.external(kFour);
  const ValueId ofX = b.external(kFour), ofW = b.external(kFour);
  b.call("aten.sin.default", {tensorArg(x)}, {sine});
  b.call("aten.mul.Tensor", {tensorArg(tangent), tensorArg(w)}, {scaled});
  b.call("aten.mul.Tensor", {tensorArg(tangent), tensorArg(sine)}, {ofW});
  b.ready({ofW});
  b.call("aten.cos.default", {tensorArg(x)}, {cosine});
  b.call("aten.mul.Tensor", {tensorArg(scaled), tensorArg(cosine)}, {ofX});
  b.program.outputs = {ofX, ofW};
  return b.program;
}

Entries sineProductEntries() { return {{"forward", sineProductProgram()}, {"backward", sineProductGradients()}}; }

// Outputs: sin(x), and a view of the input x, which one test uses as the saved tensor.
Program viewProgram() {
  ProgramBuilder b;
  const ValueId x = b.input(kFour), view = b.external(contiguous(DType::kF32, {2, 2})), y = b.external(kFour);
  b.call("aten.view.default", {tensorArg(x), scalarListArg({SymExpr(2), SymExpr(2)})}, {view});
  b.call("aten.sin.default", {tensorArg(x)}, {y});
  b.program.outputs = {y, view};
  return b.program;
}

at::Tensor floats() { return at::randn({4}).requires_grad_(); }

TEST(ProgramCode, GradientsLeaveWhereTheProgramSaysTheyAreReady) {
  RegionSignature signature = plainSignature(2, 1, 2);
  signature.gradientStages = {1, 0};
  const Entries entries = {{"forward", sineProductProgram()}, {"backward", stagedSineProductGradients()}};
  const auto region = Region::create(load(entries), signature, nullptr);
  ASSERT_TRUE(region.hasValue()) << region.status().message();
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = floats(), w = floats(), y = run(**region, {x, w});
    const at::Tensor expected = w.detach() * at::cos(x.detach());
    w.register_hook([&](const at::Tensor&) {
      EXPECT_FALSE(x.grad().defined());
      const at::NoGradGuard noGrad;
      w.zero_();
    });
    y.sum().backward();
    EXPECT_TRUE(at::allclose(x.grad(), expected));
    EXPECT_TRUE(at::allclose(w.grad(), at::sin(x.detach())));
  }
}

TEST(ProgramCode, OtherStagesThanTheProgramsAreRefused) {
  RegionSignature signature = plainSignature(2, 1, 2);
  const Entries entries = {{"forward", sineProductProgram()}, {"backward", stagedSineProductGradients()}};
  EXPECT_THAT(Region::create(load(entries), signature, nullptr).status().message(),
              HasSubstr("the signature says 1 stages, the entries have 2"));
  signature.gradientStages = {0, 1};
  EXPECT_THAT(Region::create(load(entries), signature, nullptr).status().message(),
              HasSubstr("gradient_stages differ"));
}

TEST(ProgramCode, ARegionOfProgramsTrainsAsTorchDoes) {
  const auto region = Region::create(load(sineProductEntries()), plainSignature(2, 1, 2), nullptr);
  ASSERT_TRUE(region.hasValue()) << region.status().message();
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = floats(), w = floats(), y = run(**region, {x, w});
    EXPECT_TRUE(at::equal(y, sineProduct(x, w)));
    const Tensors ours = grad({y.square().sum()}, {x, w});
    const Tensors theirs = grad({sineProduct(x, w).square().sum()}, {x, w});
    EXPECT_TRUE(at::allclose(ours[0], theirs[0]));
    EXPECT_TRUE(at::allclose(ours[1], theirs[1]));
  }
}

TEST(ProgramCode, InputsThatDoNotFitAreRefusedByName) {
  const auto region = Region::create(load(sineProductEntries()), plainSignature(2, 1, 2), nullptr);
  ASSERT_TRUE(region.hasValue()) << region.status().message();
  EXPECT_THAT(refusal(**region, {at::randn({5}).requires_grad_(), floats()}), HasSubstr("input 0 is f32[5]"));
  EXPECT_THAT(refusal(**region, {floats(), leaf({4})}), HasSubstr("input 1 is f64[4]"));
  EXPECT_EQ(refusal(**region, {at::conj(at::randn({4}, at::kComplexFloat)), floats()}),
            "an input is not a plain tensor");
}

TEST(ProgramCode, TangentsOfAnyStridesAreTaken) {
  const auto region = Region::create(load(sineProductEntries()), plainSignature(2, 1, 2), nullptr);
  ASSERT_TRUE(region.hasValue()) << region.status().message();
  const at::Tensor x = floats(), w = floats(), tangent = at::randn({8}).slice(0, 0, 8, 2);
  EXPECT_TRUE(at::allclose(grad({run(**region, {x, w})}, {x, w}, {tangent})[1], tangent * at::sin(x)));
}

TEST(ProgramCode, ASavedViewNoticesThatItsInputWasModified) {
  RegionSignature signature = plainSignature(1, 1, 1);
  ProgramBuilder b;
  b.input(contiguous(DType::kF32, {2, 2}));  // saved
  const ValueId tangent = b.input(kFour), gradient = b.external(kFour);
  b.call("aten.neg.default", {tensorArg(tangent)}, {gradient});
  b.program.outputs = {gradient};
  const auto region = Region::create(load({{"forward", viewProgram()}, {"backward", b.program}}), signature, nullptr);
  ASSERT_TRUE(region.hasValue()) << region.status().message();
  const at::Tensor x = floats(), y = run(**region, {x});
  {
    const at::NoGradGuard noGrad;
    x.add_(1);
  }
  EXPECT_THAT(errorOf([&] { y.sum().backward(); }), HasSubstr("modified by an inplace operation"));
}

TEST(ProgramCode, AnExecutableWithoutForwardIsRefused) {
  auto executable = std::make_shared<Executable>();
  executable->entries["backward"] = sineProductProgram();
  const auto loaded = aten::AtenExecutable::load(std::move(executable));
  ASSERT_TRUE(loaded.hasValue()) << loaded.status().message();
  EXPECT_EQ(ProgramCode::create(*loaded).status().message(), "a Region needs an entry \"forward\"");
}

TEST(ProgramCode, CountsThatTheEntriesDoNotHaveAreNamed) {
  const auto code = load(sineProductEntries());
  EXPECT_EQ(code->check(plainSignature(2, 1, 2)).message(), "");
  EXPECT_EQ(code->check(plainSignature(1, 1, 2)).message(), "the signature says 1 inputs, the entries have 2");
  EXPECT_EQ(code->check(plainSignature(2, 2, 2)).message(), "the signature says 4 forward outputs, the entries have 3");
  RegionSignature oneTangent = plainSignature(2, 2, 1);
  oneTangent.tangents = {0};
  EXPECT_EQ(code->check(oneTangent).message(), "the signature says 2 backward inputs, the entries have 3");
  const auto alone = load({{"forward", sineProductProgram()}});
  EXPECT_EQ(alone->check(plainSignature(2, 1, 2)).message(),
            "the signature has tangents but there is no backward entry");
}

TEST(ProgramCode, AliasesThatTheSignatureDoesNotNameAreUnsupported) {
  const auto code = load({{"forward", viewProgram()}});
  RegionSignature signature = plainSignature(1, 2, 0);
  signature.tangents.clear();
  const Status unnamed = code->check(signature);
  EXPECT_EQ(unnamed.code(), StatusCode::kUnsupported);
  EXPECT_EQ(unnamed.message(), "output 1 is a view of an input");
  signature.outputViews = {-1, 0};
  EXPECT_EQ(code->check(signature).message(), "");
  signature.outputViews = {0, 0};
  EXPECT_EQ(code->check(signature).message(), "output 0 is not computed as a view of the input it is said to view");
}

TEST(ProgramCode, OutputsThatShareMemoryAreUnsupported) {
  ProgramBuilder b;
  const ValueId x = b.input(kFour), y = b.external(kFour), view = b.external(contiguous(DType::kF32, {2, 2}));
  b.call("aten.sin.default", {tensorArg(x)}, {y});
  b.call("aten.view.default", {tensorArg(y), scalarListArg({SymExpr(2), SymExpr(2)})}, {view});
  b.program.outputs = {y, view};
  const auto code = load({{"forward", b.program}});
  RegionSignature signature = plainSignature(1, 2, 0);
  signature.tangents.clear();
  EXPECT_EQ(code->check(signature).message(), "output 1 shares memory with output 0");
}

TEST(ProgramCode, AMutatedIntegerIsRefused) {
  ProgramBuilder b;
  b.scalarInput(SymExpr(7));
  const ValueId out = b.external(kFour);
  b.call("aten.zeros.default", {scalarListArg({SymExpr(4)})}, {out});
  b.program.outputs = {out, out};
  const auto code = load({{"forward", b.program}});
  RegionSignature signature = plainSignature(1, 1, 0);
  signature.tangents.clear();
  signature.mutatedInputs = {0};
  EXPECT_EQ(code->check(signature).message(), "mutated_inputs names input 0, which is not a tensor");
}

}  // namespace
}  // namespace agspeed::runtime::autograd
