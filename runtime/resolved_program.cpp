// SPDX-License-Identifier: Apache-2.0
#include "runtime/resolved_program.h"

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/base/format.h"

namespace agspeed::runtime {
namespace {

StatusOr<std::vector<int64_t>> evaluateAll(const std::vector<SymExpr>& expressions,
                                           const std::vector<int64_t>& symbols) {
  std::vector<int64_t> values;
  values.reserve(expressions.size());
  for (const SymExpr& expression : expressions) {
    AG_ASSIGN_OR_RETURN(int64_t value, expression.evaluate(symbols));
    values.push_back(value);
  }
  return values;
}

StatusOr<TensorLayout> resolveLayout(const TensorType& type, const std::vector<int64_t>& symbols) {
  TensorLayout layout;
  layout.dtype = type.dtype;
  AG_ASSIGN_OR_RETURN(layout.sizes, evaluateAll(type.sizes, symbols));
  AG_ASSIGN_OR_RETURN(layout.strides, evaluateAll(type.strides, symbols));
  int64_t elements = 1;
  for (size_t dim = 0; dim < layout.sizes.size(); ++dim) {
    if (layout.sizes[dim] < 0) return invalidArgument("a size evaluates to {}", layout.sizes[dim]);
    elements = layout.sizes[dim] == 0 ? 0 : elements;
    if (elements > 0) elements += (layout.sizes[dim] - 1) * layout.strides[dim];
  }
  layout.bytes = elements * static_cast<int64_t>(sizeInBytes(layout.dtype));
  return layout;
}

Status resolveValue(const ValueDecl& decl, ResolvedProgram& out) {
  out.viewOffsets.push_back(0);
  if (decl.storage == Storage::kView) {
    AG_ASSIGN_OR_RETURN(out.viewOffsets.back(), decl.viewOffset.evaluate(out.symbols));
  }
  if (decl.isScalar) {
    out.layouts.emplace_back();
    out.arenaOffsets.push_back(-1);
    AG_ASSIGN_OR_RETURN(int64_t scalar, decl.symbolValue.evaluate(out.symbols));
    out.scalars.push_back(scalar);
    return {};
  }
  AG_ASSIGN_OR_RETURN(TensorLayout layout, resolveLayout(decl.type, out.symbols));
  int64_t offset = -1;
  if (decl.storage == Storage::kArena) {
    AG_ASSIGN_OR_RETURN(offset, decl.arenaOffset.evaluate(out.symbols));
    if (offset < 0 || offset + layout.bytes > out.arenaBytes) {
      return invalidArgument("an arena value of {} bytes at offset {} leaves the arena of {}", layout.bytes, offset,
                             out.arenaBytes);
    }
  }
  out.layouts.push_back(std::move(layout));
  out.arenaOffsets.push_back(offset);
  out.scalars.push_back(0);
  return {};
}

Status resolveLaunch(const Program& program, const KernelCall& call, ResolvedProgram& out) {
  ResolvedLaunch launch;
  launch.firstInteger = out.integers.size();
  AG_ASSIGN_OR_RETURN(std::vector<int64_t> integers, evaluateAll(call.integers, out.symbols));
  out.integers.insert(out.integers.end(), integers.begin(), integers.end());
  AG_ASSIGN_OR_RETURN(launch.extent, call.extent.evaluate(out.symbols));
  AG_ASSIGN_OR_RETURN(launch.grain, call.grain.evaluate(out.symbols));
  launch.grain = std::max<int64_t>(launch.grain, 1);
  launch.firstOffset = out.operandOffsets.size();
  launch.hasOffsets = !call.offsets.empty();
  for (size_t i = 0; i < call.offsets.size(); ++i) {
    AG_ASSIGN_OR_RETURN(int64_t elements, call.offsets[i].evaluate(out.symbols));
    const DType dtype = program.values[call.operands[i]].type.dtype;
    out.operandOffsets.push_back(elements * static_cast<int64_t>(sizeInBytes(dtype)));
  }
  out.launches.push_back(launch);
  return {};
}

Status checkBound(const Bound& bound, const ResolvedProgram& resolved) {
  AG_ASSIGN_OR_RETURN(const int64_t begin, bound.begin.evaluate(resolved.symbols));
  AG_ASSIGN_OR_RETURN(const int64_t end, bound.end.evaluate(resolved.symbols));
  const TensorLayout& layout = resolved.layouts[bound.value];
  const int64_t elements = layout.bytes / static_cast<int64_t>(sizeInBytes(layout.dtype));
  if (begin >= 0 && end <= elements) return {};
  return invalidArgument("a part from element {} to {} leaves the {} elements of value v{}", begin, end, elements,
                         bound.value);
}

}  // namespace

StatusOr<std::unique_ptr<ResolvedProgram>> resolve(const Program& program, std::vector<int64_t> symbols) {
  auto out = std::make_unique<ResolvedProgram>();
  out->symbols = std::move(symbols);
  AG_ASSIGN_OR_RETURN(out->arenaBytes, program.arenaBytes.evaluate(out->symbols));
  for (size_t id = 0; id < program.values.size(); ++id) {
    AG_RETURN_IF_ERROR(resolveValue(program.values[id], *out).withContext(formatText("value v{}", id)));
  }
  for (const Instruction& instruction : program.instructions) {
    if (const auto* call = std::get_if<KernelCall>(&instruction.op)) {
      AG_RETURN_IF_ERROR(resolveLaunch(program, *call, *out).withContext(instruction.origin));
    }
  }
  for (const Bound& bound : program.bounds) AG_RETURN_IF_ERROR(checkBound(bound, *out));
  return out;
}

}  // namespace agspeed::runtime
