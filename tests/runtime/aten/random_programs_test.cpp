// SPDX-License-Identifier: Apache-2.0
// Random straight-line Programs of operators on small integers, against the same operators called directly.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>

#include "runtime/aten/aten_executable.h"
#include "tests/runtime/program_builder.h"

namespace agspeed::runtime::aten {
namespace {

struct BinaryOp {
  const char* name;
  at::Tensor (*direct)(const at::Tensor&, const at::Tensor&);
};

// Exact on small integers, so results must be equal to the last bit.
const BinaryOp kOps[] = {
    {"aten.mul.Tensor", [](const at::Tensor& a, const at::Tensor& b) { return at::mul(a, b).remainder(13); }},
    {"aten.maximum.default", [](const at::Tensor& a, const at::Tensor& b) { return at::maximum(a, b); }},
    {"aten.add.Tensor", [](const at::Tensor& a, const at::Tensor& b) { return at::add(a, b); }},
    {"aten.mm.default", [](const at::Tensor& a, const at::Tensor& b) { return at::mm(a, b).remainder(13); }},
};

class RandomProgram {
 public:
  RandomProgram(uint64_t seed, int64_t n) : random_(seed) {
    type_ = contiguous(DType::kF64, {SymExpr(n), SymExpr(n)});
    for (int i = 0; i < 3; ++i) {
      ids_.push_back(b_.input(type_));
      direct_.push_back(at::randint(-3, 4, {n, n}, at::kDouble));
      inputs_.emplace_back(direct_.back());
    }
  }

  void grow(int steps) {
    for (int i = 0; i < steps; ++i) {
      const BinaryOp& op = kOps[pick(std::size(kOps))];
      const size_t left = pick(ids_.size());
      const size_t right = pick(ids_.size());
      ids_.push_back(emit(op.name, {tensorArg(ids_[left]), tensorArg(ids_[right])}));
      const bool bounded = std::string(op.name).find(".m") != std::string::npos &&
                           std::string(op.name).find("maximum") == std::string::npos;
      if (bounded) ids_.back() = emit("aten.remainder.Scalar", {tensorArg(ids_.back()), scalarArg(SymExpr(13))});
      direct_.push_back(op.direct(direct_[left], direct_[right]));
    }
  }

  void check() {
    b_.program.outputs = ids_;
    auto executable = std::make_shared<Executable>();
    executable->entries["forward"] = b_.program;
    auto loaded = AtenExecutable::load(executable);
    ASSERT_TRUE(loaded.hasValue()) << loaded.status().message();
    auto outputs = AtenExecutable::run(*(*loaded)->entry("forward"), inputs_);
    ASSERT_TRUE(outputs.hasValue()) << outputs.status().message();
    for (size_t i = 0; i < direct_.size(); ++i) {
      ASSERT_TRUE(at::equal(std::get<at::Tensor>((*outputs)[i]), direct_[i])) << "value " << i;
    }
  }

 private:
  size_t pick(size_t count) { return random_() % count; }
  ValueId emit(const char* op, std::vector<ExternalArg> args) {
    const ValueId id = b_.external(type_);
    b_.call(op, std::move(args), {id});
    return id;
  }

  std::mt19937_64 random_;
  TensorType type_;
  ProgramBuilder b_;
  std::vector<ValueId> ids_;
  std::vector<at::Tensor> direct_;
  std::vector<Argument> inputs_;
};

TEST(RandomPrograms, EqualDirectCalls) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const auto n = static_cast<int64_t>(1 + seed % 9);
    const int steps = static_cast<int>(1 + seed % 12);
    SCOPED_TRACE("seed " + std::to_string(seed) + ", size " + std::to_string(n) + ", steps " + std::to_string(steps));
    RandomProgram program(seed, n);
    program.grow(steps);
    program.check();
  }
}

}  // namespace
}  // namespace agspeed::runtime::aten
