// SPDX-License-Identifier: Apache-2.0
// ProgramBuilder: writes Programs for tests in a few lines. Values are contiguous.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/executable.h"

namespace agspeed::runtime {

inline TensorType contiguous(DType dtype, std::vector<SymExpr> sizes) {
  std::vector<SymExpr> strides(sizes.size(), SymExpr(1));
  for (size_t dim = sizes.size(); dim-- > 1;) strides[dim - 1] = strides[dim] * sizes[dim];
  return {dtype, std::move(sizes), std::move(strides)};
}

/// A KernelLibrary of plain functions.
class FunctionLibrary final : public HostKernelLibrary {
 public:
  explicit FunctionLibrary(std::vector<KernelFunction> functions) : functions_(std::move(functions)) {}
  size_t numKernels() const override { return functions_.size(); }
  KernelFunction kernel(size_t index) const override { return functions_[index]; }
  void launch(size_t index, void* const* pointers, const int64_t* integers, int64_t begin, int64_t end) const override {
    kernel(index)(pointers, integers, begin, end);
  }

 private:
  std::vector<KernelFunction> functions_;
};

class ProgramBuilder {
 public:
  ValueId input(TensorType type) {
    const ValueId id = value(std::move(type), Storage::kInput, static_cast<int32_t>(program.inputs.size()));
    program.inputs.push_back(id);
    return id;
  }
  ValueId scalarInput(SymExpr symbol) {
    const ValueId id = input({});
    program.values[id].isScalar = true;
    program.values[id].symbolValue = std::move(symbol);
    return id;
  }
  ValueId fresh(TensorType type) { return value(std::move(type), Storage::kFresh, 0); }
  ValueId external(TensorType type) { return value(std::move(type), Storage::kExternal, 0); }
  ValueId constant(TensorType type, int32_t index) { return value(std::move(type), Storage::kConstant, index); }
  ValueId arena(TensorType type, SymExpr offset) {
    const ValueId id = value(std::move(type), Storage::kArena, 0);
    program.values[id].arenaOffset = std::move(offset);
    return id;
  }
  /// A value in the memory of another one, with a View that makes its tensor.
  ValueId view(ValueId source, TensorType type, SymExpr offset) {
    const ValueId id = value(std::move(type), Storage::kView, 0);
    program.values[id].source = source;
    program.values[id].viewOffset = std::move(offset);
    program.instructions.emplace_back().op = View{id};
    return id;
  }
  void kernel(int32_t index, std::vector<ValueId> operands, std::vector<SymExpr> integers, SymExpr extent,
              SymExpr grain = SymExpr(int64_t{1} << 40)) {
    Instruction instruction;
    instruction.op = KernelCall{index, std::move(operands), std::move(integers), std::move(extent), std::move(grain)};
    instruction.origin = "kernel" + std::to_string(program.instructions.size());
    program.instructions.push_back(std::move(instruction));
  }
  void call(std::string op, std::vector<ExternalArg> args, std::vector<ValueId> results) {
    Instruction instruction;
    instruction.op = ExternalCall{std::move(op), std::move(args), std::move(results)};
    instruction.origin = "call" + std::to_string(program.instructions.size());
    program.instructions.push_back(std::move(instruction));
  }
  void ready(std::vector<ValueId> values) {
    program.instructions.emplace_back().op = GradientsReady{std::move(values)};
  }
  void release(ValueId id) {
    Instruction instruction;
    instruction.op = Release{id};
    program.instructions.push_back(std::move(instruction));
  }

  Program program;

 private:
  ValueId value(TensorType type, Storage storage, int32_t index) {
    ValueDecl decl;
    decl.type = std::move(type);
    decl.storage = storage;
    decl.index = index;
    program.values.push_back(std::move(decl));
    return static_cast<ValueId>(program.values.size()) - 1;
  }
};

inline ExternalArg tensorArg(ValueId id) {
  ExternalArg arg;
  arg.kind = ExternalArg::Kind::kValue;
  arg.values = {id};
  return arg;
}

inline ExternalArg listArg(std::vector<ValueId> ids) {
  ExternalArg arg;
  arg.kind = ExternalArg::Kind::kValueList;
  arg.values = std::move(ids);
  return arg;
}

inline ExternalArg scalarArg(ExternalArg::Scalar scalar, std::string name = "") {
  ExternalArg arg;
  arg.scalars = {std::move(scalar)};
  arg.name = std::move(name);
  return arg;
}

inline ExternalArg scalarListArg(std::vector<ExternalArg::Scalar> scalars) {
  ExternalArg arg;
  arg.kind = ExternalArg::Kind::kScalarList;
  arg.scalars = std::move(scalars);
  return arg;
}

}  // namespace agspeed::runtime
