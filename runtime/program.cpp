// SPDX-License-Identifier: Apache-2.0
#include "runtime/program.h"

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/base/format.h"

namespace agspeed::runtime {
namespace {

// Walks the instructions in order and tracks which values exist.
class Verifier {
 public:
  Verifier(const Program& program, size_t numKernels, size_t numConstants)
      : program_(program),
        numKernels_(numKernels),
        numConstants_(numConstants),
        alive_(program.values.size(), false),
        handedOver_(program.values.size(), false) {}

  Status verify() {
    AG_RETURN_IF_ERROR(checkInputs());
    AG_RETURN_IF_ERROR(checkValues());
    AG_RETURN_IF_ERROR(checkSymbols());
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      AG_RETURN_IF_ERROR(checkInstruction(program_.instructions[i])
                             .withContext(formatText("instruction {} ({})", i, program_.instructions[i].origin)));
    }
    return checkOutputs();
  }

 private:
  static Status broken(std::string what) { return invalidArgument("malformed Program: " + std::move(what)); }

  bool exists(ValueId id) const { return id >= 0 && static_cast<size_t>(id) < program_.values.size(); }

  static std::string name(ValueId id) { return formatText("value v{}", id); }

  Status checkInputs() {
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      const ValueId id = program_.inputs[i];
      if (!exists(id)) return broken(formatText("input {} names no value", i));
      const ValueDecl& decl = program_.values[id];
      if (decl.storage != Storage::kInput || decl.index != static_cast<int32_t>(i)) {
        return broken(formatText("{} is input {} but not declared so", name(id), i));
      }
    }
    return {};
  }

  Status checkValues() {
    for (size_t id = 0; id < program_.values.size(); ++id) {
      const ValueDecl& decl = program_.values[id];
      if (decl.type.sizes.size() != decl.type.strides.size()) {
        return broken(
            formatText("{} has {} sizes but {} strides", name(id), decl.type.sizes.size(), decl.type.strides.size()));
      }
      if (decl.storage == Storage::kConstant && (decl.index < 0 || static_cast<size_t>(decl.index) >= numConstants_)) {
        return broken(formatText("{} names constant {} of {}", name(id), decl.index, numConstants_));
      }
      if (decl.storage == Storage::kView) AG_RETURN_IF_ERROR(checkSource(static_cast<ValueId>(id)));
      // External values and views exist once their instruction has run; all other values exist from the start.
      alive_[id] = (decl.storage != Storage::kExternal && decl.storage != Storage::kView) || decl.isScalar;
    }
    return {};
  }

  Status checkSource(ValueId id) const {
    const ValueId source = program_.values[id].source;
    if (exists(source) && program_.values[source].storage != Storage::kView) return {};
    return broken(name(id) + " is in the memory of no value that owns memory");
  }

  Status checkSymbols() const {
    for (const SymbolBinding& binding : program_.symbols) {
      if (binding.input == -1) continue;
      const bool inRange = binding.input >= 0 && static_cast<size_t>(binding.input) < program_.inputs.size();
      if (!inRange) return broken(formatText("a symbol is bound to input {}", binding.input));
      const ValueDecl& decl = program_.values[program_.inputs[binding.input]];
      const bool scalar = binding.dim == -1;
      if (scalar != decl.isScalar || binding.dim >= static_cast<int32_t>(decl.type.sizes.size())) {
        return broken(formatText("a symbol is bound to dimension {} of input {}", binding.dim, binding.input));
      }
    }
    return {};
  }

  Status checkRead(ValueId id) const {
    if (!exists(id)) return broken("reads a value that does not exist");
    if (handedOver_[id]) return broken(name(id) + " is read after it was handed over");
    if (!alive_[id]) return broken(name(id) + " is read before it is written, or after its release");
    return {};
  }

  Status checkInstruction(const Instruction& instruction) {
    return std::visit([this](const auto& op) { return check(op); }, instruction.op);
  }

  Status check(const KernelCall& call) {
    if (call.kernel < 0 || static_cast<size_t>(call.kernel) >= numKernels_) {
      return broken(formatText("kernel {} of {}", call.kernel, numKernels_));
    }
    if (!call.offsets.empty() && call.offsets.size() != call.operands.size()) {
      return broken(formatText("{} offsets for {} operands", call.offsets.size(), call.operands.size()));
    }
    for (ValueId id : call.operands) {
      AG_RETURN_IF_ERROR(checkRead(id));
      if (program_.values[id].isScalar) return broken(name(id) + " is a number, kernels take tensors");
      if (program_.values[id].isOnHost) return broken(name(id) + " is on the CPU, kernels run elsewhere");
    }
    return {};
  }

  Status check(const ExternalCall& call) {
    for (const ExternalArg& arg : call.args) {
      for (ValueId id : arg.values) {
        if (id != kNoValue) AG_RETURN_IF_ERROR(checkRead(id));
      }
    }
    for (ValueId id : call.results) {
      if (id == kNoValue) continue;
      if (!exists(id) || program_.values[id].storage != Storage::kExternal) {
        return broken(call.op + " writes a value that is not of storage kExternal");
      }
      alive_[id] = true;
    }
    return {};
  }

  Status check(const View& view) {
    if (!exists(view.value) || program_.values[view.value].storage != Storage::kView) {
      return broken("makes a view of a value that is not of storage kView");
    }
    AG_RETURN_IF_ERROR(checkRead(program_.values[view.value].source));
    alive_[view.value] = true;
    return {};
  }

  Status check(const Release& release) {
    AG_RETURN_IF_ERROR(checkRead(release.value));
    const ValueDecl& decl = program_.values[release.value];
    if (decl.storage == Storage::kArena || decl.storage == Storage::kConstant || decl.isScalar) {
      return broken(name(release.value) + " is released but owns no memory");
    }
    alive_[release.value] = false;
    return {};
  }

  Status check(const GradientsReady& ready) {
    for (ValueId id : ready.values) {
      AG_RETURN_IF_ERROR(checkRead(id));
      const auto& outputs = program_.outputs;
      if (std::find(outputs.begin(), outputs.end(), id) == outputs.end() || program_.values[id].isScalar) {
        return broken(name(id) + " is handed over but is not a tensor output");
      }
      handedOver_[id] = true;
    }
    return {};
  }

  Status checkOutputs() const {
    for (ValueId id : program_.outputs) {
      if (id == kNoValue) continue;
      if (!exists(id) || !handedOver_[id]) AG_RETURN_IF_ERROR(checkRead(id).withContext("output"));
      if (program_.values[id].storage == Storage::kArena) return broken(name(id) + " is an output inside the arena");
    }
    return {};
  }

  const Program& program_;
  const size_t numKernels_;
  const size_t numConstants_;
  std::vector<bool> alive_;
  std::vector<bool> handedOver_;
};

}  // namespace

std::vector<int32_t> stagesOfOutputs(const Program& program) {
  std::vector<int32_t> stageOf(program.values.size(), -1);
  int32_t stage = 0;
  for (const Instruction& instruction : program.instructions) {
    const auto* ready = std::get_if<GradientsReady>(&instruction.op);
    if (ready == nullptr) continue;
    for (ValueId id : ready->values) stageOf[id] = stage;
    ++stage;
  }
  std::vector<int32_t> stages;
  for (ValueId id : program.outputs) stages.push_back(id == kNoValue ? 0 : stageOf[id] < 0 ? stage : stageOf[id]);
  return stages;
}

size_t numStages(const Program& program) {
  const auto isReady = [](const Instruction& i) { return std::holds_alternative<GradientsReady>(i.op); };
  return 1 + static_cast<size_t>(std::count_if(program.instructions.begin(), program.instructions.end(), isReady));
}

Status verify(const Program& program, size_t numKernels, size_t numConstants) {
  return Verifier(program, numKernels, numConstants).verify();
}

}  // namespace agspeed::runtime
