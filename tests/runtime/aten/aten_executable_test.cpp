// SPDX-License-Identifier: Apache-2.0
// Hand-written Programs with plain functions as kernels, against the same computation written with ATen.
#include "runtime/aten/aten_executable.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "tests/runtime/program_builder.h"

namespace agspeed::runtime::aten {
namespace {

using ::testing::HasSubstr;

const SymExpr kRows = SymExpr::symbol(0);

// y = max(x, 0) over [begin, end) of contiguous floats.
void reluKernel(void* const* pointers, const int64_t* integers, int64_t begin, int64_t end) {
  const auto* x = static_cast<const float*>(pointers[0]);
  auto* y = static_cast<float*>(pointers[1]);
  for (int64_t i = begin * integers[0]; i < end * integers[0]; ++i) y[i] = x[i] > 0 ? x[i] : 0;
}

std::shared_ptr<const AtenExecutable> load(Program program, std::vector<ConstantTensor> constants = {}) {
  auto executable = std::make_shared<Executable>();
  executable->entries["forward"] = std::move(program);
  executable->constants = std::move(constants);
  executable->kernels = std::make_shared<FunctionLibrary>(std::vector<KernelFunction>{&reluKernel});
  auto loaded = AtenExecutable::load(executable);
  EXPECT_TRUE(loaded.hasValue()) << loaded.status().message();
  return loaded.hasValue() ? *loaded : nullptr;
}

std::vector<Argument> run(const AtenExecutable& executable, const std::vector<Argument>& inputs) {
  auto outputs = AtenExecutable::run(*executable.entry("forward"), inputs);
  EXPECT_TRUE(outputs.hasValue()) << outputs.status().message();
  return outputs.hasValue() ? *outputs : std::vector<Argument>();
}

std::string failure(const AtenExecutable& executable, const std::vector<Argument>& inputs) {
  return AtenExecutable::run(*executable.entry("forward"), inputs).status().message();
}

const at::Tensor& tensor(const Argument& argument) { return std::get<at::Tensor>(argument); }

// relu(x @ w + b) with x: [s0, 8], w: [8, 4]: the product by ATen, relu through the arena, then a sum by ATen.
Program linearRelu() {
  ProgramBuilder b;
  const ValueId x = b.input(contiguous(DType::kF32, {kRows, 8}));
  const ValueId w = b.input(contiguous(DType::kF32, {8, 4}));
  const ValueId bias = b.input(contiguous(DType::kF32, {4}));
  const ValueId product = b.external(contiguous(DType::kF32, {kRows, 4}));
  const ValueId activated = b.arena(contiguous(DType::kF32, {kRows, 4}), SymExpr(0));
  const ValueId out = b.fresh(contiguous(DType::kF32, {kRows, 4}));
  const ValueId sum = b.external(contiguous(DType::kF32, {4}));
  b.program.arenaBytes = kRows * 16;
  b.program.symbols = {{0, 0}};
  b.call("aten.addmm.default", {tensorArg(bias), tensorArg(x), tensorArg(w)}, {product});
  b.kernel(0, {product, activated}, {4}, kRows, 2);
  b.kernel(0, {product, out}, {4}, kRows);
  b.release(product);
  b.call("aten.sum.dim_IntList", {tensorArg(activated), scalarListArg({SymExpr(0)})}, {sum});
  const ValueId rows = b.fresh({});
  b.program.values[rows].isScalar = true;
  b.program.values[rows].symbolValue = kRows * 4;
  b.program.outputs = {out, kNoValue, sum, rows};
  return b.program;
}

TEST(AtenExecutable, MixesOperatorsKernelsArenaAndNumbers) {
  auto executable = load(linearRelu());
  for (int64_t rows : {1, 3, 64, 3, 0}) {
    const at::Tensor x = at::randn({rows, 8}), w = at::randn({8, 4}), bias = at::randn({4});
    const auto outputs = run(*executable, {x, w, bias});
    ASSERT_EQ(outputs.size(), 4u);
    const at::Tensor expected = at::relu(at::addmm(bias, x, w));
    EXPECT_TRUE(at::equal(tensor(outputs[0]), expected)) << rows << " rows";
    EXPECT_TRUE(std::holds_alternative<std::monostate>(outputs[1]));
    EXPECT_TRUE(at::allclose(tensor(outputs[2]), expected.sum(0)));
    EXPECT_EQ(std::get<int64_t>(outputs[3]), rows * 4);
  }
}

TEST(AtenExecutable, InputsThatDoNotFitAreNamedAndNothingRuns) {
  auto executable = load(linearRelu());
  const at::Tensor x = at::randn({3, 8}), w = at::randn({8, 4}), bias = at::randn({4});
  EXPECT_THAT(failure(*executable, {x.to(at::kDouble), w, bias}), HasSubstr("input 0 is f64[3, 8]"));
  EXPECT_THAT(failure(*executable, {x, at::randn({4, 8}).t(), bias}), HasSubstr("with strides [1, 8]"));
  EXPECT_THAT(failure(*executable, {x, w, at::randn({5})}), HasSubstr("compiled for f32[4]"));
  EXPECT_THAT(failure(*executable, {x, w}), HasSubstr("takes 3 inputs, got 2"));
  EXPECT_THAT(failure(*executable, {x, w, int64_t{3}}), HasSubstr("input 2 must be a tensor"));
  EXPECT_THAT(failure(*executable, {x, w, {}}), HasSubstr("no tensor"));
}

TEST(AtenExecutable, FlexibleInputsAreCopiedIntoTheDeclaredStrides) {
  auto executable = load(linearRelu());
  const at::Tensor x = at::randn({8, 3}).t(), w = at::randn({8, 4}), bias = at::zeros({}).expand({4});
  AtenRun run(*executable->entry("forward"));
  auto outputs = run.start({x, w, bias}, 0);
  ASSERT_TRUE(outputs.hasValue()) << outputs.status().message();
  EXPECT_TRUE(at::allclose(tensor((*outputs)[0]), at::relu(at::addmm(bias, x, w))));
}

TEST(AtenExecutable, OutputsOfAStageAreHandedOverBeforeTheNextOneRuns) {
  ProgramBuilder b;
  const TensorType four = contiguous(DType::kF32, {4});
  const ValueId x = b.input(four), sine = b.external(four), twice = b.external(four), last = b.external(four);
  b.call("aten.sin.default", {tensorArg(x)}, {sine});
  b.call("aten.add.Tensor", {tensorArg(sine), tensorArg(sine)}, {twice});
  b.ready({sine});
  b.call("aten.cos.default", {tensorArg(twice)}, {last});
  b.program.outputs = {last, kNoValue, sine};
  auto executable = load(b.program);
  const AtenEntry& entry = *executable->entry("forward");
  EXPECT_THAT(entry.stages, ::testing::ElementsAre(1, 0, 0));
  const at::Tensor input = at::randn({4}), expected = at::cos(at::sin(input) * 2);
  AtenRun run(entry);
  auto first = run.start({input});
  ASSERT_TRUE(first.hasValue()) << first.status().message();
  ASSERT_EQ(first->size(), 2u);
  EXPECT_TRUE(std::holds_alternative<std::monostate>((*first)[0]));
  EXPECT_TRUE(at::equal(tensor((*first)[1]), at::sin(input)));
  tensor((*first)[1]).zero_();  // the caller may change its result
  auto second = run.resume();
  ASSERT_TRUE(second.hasValue()) << second.status().message();
  ASSERT_EQ(second->size(), 1u);
  EXPECT_TRUE(at::equal(tensor((*second)[0]), expected));
  auto all = AtenExecutable::run(entry, {input});
  ASSERT_TRUE(all.hasValue()) << all.status().message();
  EXPECT_TRUE(at::equal(tensor((*all)[0]), expected));
  EXPECT_TRUE(at::equal(tensor((*all)[2]), at::sin(input)));
}

TEST(AtenExecutable, ARunMayEndBeforeItsLastStage) {
  ProgramBuilder b;
  const TensorType four = contiguous(DType::kF32, {4});
  const ValueId x = b.input(four), first = b.external(four), second = b.external(four);
  b.call("aten.sin.default", {tensorArg(x)}, {first});
  b.ready({first});
  b.call("aten.cos.default", {tensorArg(x)}, {second});
  b.program.outputs = {first, second};
  auto executable = load(b.program);
  const AtenEntry& entry = *executable->entry("forward");
  const at::Tensor input = at::randn({4});
  for (int i = 0; i < 10; ++i) {
    AtenRun run(entry);
    ASSERT_TRUE(run.start({input}).hasValue());
  }
  auto all = AtenExecutable::run(entry, {input});
  ASSERT_TRUE(all.hasValue()) << all.status().message();
  EXPECT_TRUE(at::equal(tensor((*all)[1]), at::cos(input)));
}

TEST(AtenExecutable, ResultsWithOtherStridesAreBroughtIntoTheDeclaredOnes) {
  ProgramBuilder b;
  const ValueId x = b.input(contiguous(DType::kF32, {4, 6}));
  const ValueId t = b.external(contiguous(DType::kF32, {6, 4}));  // the actual value is a transposed view
  const ValueId y = b.fresh(contiguous(DType::kF32, {6, 4}));
  b.call("aten.t.default", {tensorArg(x)}, {t});
  b.kernel(0, {t, y}, {4}, 6);
  b.program.outputs = {y};
  const at::Tensor input = at::randn({4, 6});
  EXPECT_TRUE(at::equal(tensor(run(*load(b.program), {input})[0]), at::relu(input.t())));
}

TEST(AtenExecutable, ListsAndOptionalListsOfTensors) {
  ProgramBuilder b;
  const ValueId x = b.input(contiguous(DType::kF32, {5, 4}));
  const ValueId i = b.input(contiguous(DType::kI64, {2}));
  const ValueId a = b.external(contiguous(DType::kF32, {5, 2}));
  const ValueId c = b.external({DType::kF32, {5, 2}, {4, 1}});
  const ValueId cat = b.external(contiguous(DType::kF32, {10, 2}));
  const ValueId picked = b.external(contiguous(DType::kF32, {5, 2}));
  b.program.values[a].type.strides = {4, 1};
  b.call("aten.split.Tensor", {tensorArg(x), scalarArg(SymExpr(2)), scalarArg(SymExpr(1))}, {a, c});
  b.call("aten.cat.default", {listArg({c, a})}, {cat});
  b.call("aten.index.Tensor", {tensorArg(x), listArg({kNoValue, i})}, {picked});
  b.program.outputs = {cat, picked};
  const at::Tensor input = at::randn({5, 4});
  const at::Tensor index = at::tensor({3, 0}, at::kLong);
  const auto outputs = run(*load(b.program), {input, index});
  EXPECT_TRUE(at::equal(tensor(outputs[0]), at::cat({input.slice(1, 2, 4), input.slice(1, 0, 2)})));
  EXPECT_TRUE(at::equal(tensor(outputs[1]), input.index_select(1, index)));
}

TEST(AtenExecutable, ArenaMemoryAndConstantsNeverEscape) {
  ProgramBuilder b;
  const TensorType four = contiguous(DType::kF32, {4});
  const ValueId x = b.input(four);
  const ValueId t = b.arena(four, SymExpr(0));
  const ValueId view = b.external(contiguous(DType::kF32, {2, 2}));
  const ValueId k = b.constant(four, 0);
  b.program.arenaBytes = SymExpr(16);
  b.kernel(0, {x, t}, {1}, 4);
  b.call("aten._unsafe_view.default", {tensorArg(t), scalarListArg({SymExpr(2), SymExpr(2)})}, {view});
  b.program.outputs = {view, k};
  ConstantTensor constant{four, std::vector<std::byte>(16)};
  const float values[4] = {1, 2, 3, 4};
  std::memcpy(constant.bytes.data(), values, sizeof(values));
  auto executable = load(b.program, {constant});
  const auto first = run(*executable, {at::full({4}, 1.0f)});
  tensor(first[1]).zero_();
  const auto second = run(*executable, {at::full({4}, 2.0f)});
  EXPECT_TRUE(at::equal(tensor(first[0]), at::full({2, 2}, 1.0f))) << "the arena was reused under an output";
  EXPECT_TRUE(at::equal(tensor(second[1]), at::tensor({1.0f, 2.0f, 3.0f, 4.0f}))) << "a constant was handed out";
}

TEST(AtenExecutable, IntegerInputsAreChecked) {
  ProgramBuilder b;
  b.scalarInput(SymExpr::symbol(0));
  b.scalarInput(SymExpr(7));
  const ValueId out = b.external(contiguous(DType::kF32, {SymExpr::symbol(0)}));
  b.program.symbols = {{0, -1}};
  b.call("aten.zeros.default", {scalarListArg({SymExpr::symbol(0)})}, {out});
  b.program.outputs = {out, out};
  auto executable = load(b.program);
  const auto outputs = run(*executable, {int64_t{3}, int64_t{7}});
  EXPECT_EQ(tensor(outputs[0]).size(0), 3);
  EXPECT_TRUE(tensor(outputs[0]).is_same(tensor(outputs[1])));
  EXPECT_THAT(failure(*executable, {int64_t{3}, int64_t{8}}), HasSubstr("input 1 is 8"));
}

TEST(AtenExecutable, OperatorErrorsComeBackAsAStatusWithTheirPlace) {
  ProgramBuilder b;
  const ValueId x = b.input(contiguous(DType::kF32, {4, 4}));
  const ValueId i = b.input(contiguous(DType::kI64, {1}));
  const ValueId y = b.external(contiguous(DType::kF32, {1, 4}));
  b.call("aten.embedding.default", {tensorArg(x), tensorArg(i)}, {y});
  b.program.outputs = {y};
  auto executable = load(b.program);
  EXPECT_THAT(failure(*executable, {at::randn({4, 4}), at::tensor({9}, at::kLong)}),
              HasSubstr("aten.embedding.default (call0): index out of range"));
  EXPECT_EQ(failure(*executable, {at::randn({4, 4}), at::tensor({2}, at::kLong)}), "");
}

TEST(AtenExecutable, TheCallersModesDoNotLeakIn) {
  auto executable = load(linearRelu());
  const at::Tensor x = at::randn({3, 8}).requires_grad_(), w = at::randn({8, 4}), bias = at::randn({4});
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto outputs = run(*executable, {x, w, bias});
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(tensor(outputs[0]).scalar_type(), at::kFloat);
  EXPECT_FALSE(tensor(outputs[2]).requires_grad());
  c10::InferenceMode inference;
  EXPECT_TRUE(tensor(run(*executable, {x, w, bias})[0]).is_inference());
}

TEST(AtenExecutable, InferenceModeLeavesNoTraceInReusedFrames) {
  auto executable = load(linearRelu());
  const at::Tensor x = at::randn({3, 8}), w = at::randn({8, 4}), bias = at::randn({4});
  {
    c10::InferenceMode inference;
    run(*executable, {x, w, bias});
  }
  const auto outputs = run(*executable, {x, w, bias});
  EXPECT_FALSE(tensor(outputs[0]).is_inference());
  EXPECT_FALSE(tensor(outputs[2]).is_inference());
}

TEST(AtenExecutable, ManyThreadsManySizes) {
  auto executable = load(linearRelu());
  const auto work = [&executable](int64_t thread) {
    const at::Tensor w = at::randn({8, 4}), bias = at::randn({4});
    for (int64_t i = 0; i < 200; ++i) {
      const at::Tensor x = at::randn({1 + (thread * i) % 7, 8});
      ASSERT_TRUE(at::equal(tensor(run(*executable, {x, w, bias})[0]), at::relu(at::addmm(bias, x, w))));
    }
  };
  std::vector<std::thread> threads;
  for (int64_t thread = 1; thread <= 4; ++thread) threads.emplace_back(work, thread);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace agspeed::runtime::aten
