// SPDX-License-Identifier: Apache-2.0
#include "runtime/aten/aten_executable.h"

#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

#include <cstring>
#include <utility>

#include "runtime/aten/tensors.h"

namespace agspeed::runtime::aten {
namespace {

constexpr c10::DispatchKeySet kSkippedKeys = c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                             c10::autocast_dispatch_keyset | c10::python_ks |
                                             c10::functorch_transforms_ks;

StatusOr<at::Tensor> loadConstant(const ConstantTensor& constant, c10::Device device) {
  Program holder;
  holder.values.emplace_back().type = constant.type;
  AG_ASSIGN_OR_RETURN(auto resolved, resolve(holder, {}));
  const TensorLayout& layout = resolved->layouts.front();
  if (static_cast<int64_t>(constant.bytes.size()) != layout.bytes) {
    return invalidArgument("a constant has {} bytes, its type needs {}", constant.bytes.size(), layout.bytes);
  }
  c10::InferenceMode normalTensor(false);
  try {
    at::Tensor tensor = emptyTensor(layout);
    if (layout.bytes > 0) std::memcpy(tensor.mutable_data_ptr(), constant.bytes.data(), constant.bytes.size());
    return constant.isOnHost || device.is_cpu() ? tensor : tensor.to(device);
  } catch (const c10::Error& error) {
    return resourceExhausted(error.what_without_backtrace());
  }
}

// The device of the constants: all entries run on one device.
StatusOr<c10::Device> deviceOfEntries(const Executable& executable) {
  std::optional<Device> device;
  for (const auto& [name, program] : executable.entries) {
    if (device && *device != program.device) {
      return invalidArgument("entry {} is for {}, another entry for {}", name, toString(program.device),
                             toString(*device));
    }
    device = program.device;
  }
  return deviceOf(device.value_or(Device{}));
}

at::Tensor taken(const at::Tensor& tensor) { return tensor; }
at::Tensor taken(at::Tensor& tensor) { return std::move(tensor); }

// Copies the references to tensors of constant inputs, and moves the others.
template <typename Inputs>
Status setInputs(const AtenEntry& entry, Inputs& inputs, AtenFrame& frame) {
  const size_t expected = entry.program().inputs.size();
  if (inputs.size() != expected) {
    return invalidArgument("takes {} inputs, got {}", expected, inputs.size());
  }
  for (size_t i = 0; i < expected; ++i) {
    const auto* integer = std::get_if<int64_t>(&inputs[i]);
    if (entry.isScalarInput(i) != (integer != nullptr)) {
      return invalidArgument("input {} must be {}", i, entry.isScalarInput(i) ? "an integer" : "a tensor");
    }
    if (integer != nullptr) {
      frame.setInput(i, *integer);
    } else if (auto* tensor = std::get_if<at::Tensor>(&inputs[i])) {
      frame.setInput(i, taken(*tensor));
    }
  }
  return {};
}

/// Makes a GPU the current one of this thread; does nothing for the CPU.
class OnDevice {
 public:
  explicit OnDevice(c10::Device device) {
    if (!device.is_cpu()) guard_.reset_device(device);
  }

 private:
  c10::OptionalDeviceGuard guard_;
};

int32_t inputIndex(const Program& program, ValueId id) {
  return id != kNoValue && program.values[id].storage == Storage::kInput ? program.values[id].index : -1;
}

}  // namespace

OperatorsOnly::OperatorsOnly() : keys_(kSkippedKeys), gradMode_(false) {}

int32_t AtenEntry::inputOfOutput(size_t index) const {
  return isScalarOutput(index) ? -1 : inputIndex(program(), program().outputs[index]);
}

int32_t AtenEntry::inputAliasedByOutput(size_t index) const {
  const ValueId id = program().outputs[index];
  return id == kNoValue || isScalarOutput(index) ? -1 : inputIndex(program(), backend->root(id));
}

bool AtenEntry::shareMemory(size_t first, size_t second) const {
  const ValueId a = program().outputs[first];
  const ValueId b = program().outputs[second];
  return a != kNoValue && b != kNoValue && !isScalarOutput(first) && backend->root(a) == backend->root(b);
}

StatusOr<std::shared_ptr<const AtenExecutable>> AtenExecutable::load(std::shared_ptr<const Executable> executable) {
  std::shared_ptr<AtenExecutable> loaded(new AtenExecutable);
  loaded->executable_ = executable;
  AG_ASSIGN_OR_RETURN(const c10::Device device, deviceOfEntries(*executable));
  for (const ConstantTensor& constant : executable->constants) {
    AG_ASSIGN_OR_RETURN(at::Tensor tensor, loadConstant(constant, device));
    loaded->constants_.push_back(std::move(tensor));
  }
  for (const auto& [name, program] : executable->entries) {
    // Verified before any code follows its ids.
    const size_t numKernels = executable->kernels ? executable->kernels->numKernels() : 0;
    AG_RETURN_IF_ERROR(verify(program, numKernels, executable->constants.size()).withContext("entry " + name));
    AtenEntry entry;
    AG_ASSIGN_OR_RETURN(entry.backend, AtenBackend::create(program, loaded->constants_));
    AG_ASSIGN_OR_RETURN(entry.executor, Executor::create(executable, name, entry.backend, loaded->arenas_));
    entry.event = "agspeed::" + name;
    entry.stages = stagesOfOutputs(program);
    entry.outputsOfStage.resize(numStages(program));
    for (size_t i = 0; i < entry.stages.size(); ++i) entry.outputsOfStage[entry.stages[i]].push_back(i);
    loaded->entries_.emplace(name, std::move(entry));
  }
  return std::shared_ptr<const AtenExecutable>(std::move(loaded));
}

const AtenEntry* AtenExecutable::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

StatusOr<std::vector<Argument>> AtenExecutable::run(const AtenEntry& entry, const std::vector<Argument>& inputs) {
  AtenRun run(entry);
  AG_ASSIGN_OR_RETURN(std::vector<Argument> outputs, run.start(inputs));
  if (entry.numStages() == 1) return outputs;
  std::vector<Argument> all(entry.program().outputs.size());
  for (size_t stage = 0; stage < entry.numStages(); ++stage) {
    if (stage > 0) {
      AG_ASSIGN_OR_RETURN(outputs, run.resume());
    }
    for (size_t i = 0; i < outputs.size(); ++i) all[entry.outputsOfStage[stage][i]] = std::move(outputs[i]);
  }
  return all;
}

// --- AtenRun ---------------------------------------------------------------------------------------------------------

StatusOr<std::vector<Argument>> AtenRun::start(const std::vector<Argument>& inputs) {
  return startOn(inputs, std::numeric_limits<size_t>::max());
}

StatusOr<std::vector<Argument>> AtenRun::start(std::vector<Argument>&& inputs, size_t flexibleFrom) {
  return startOn(inputs, flexibleFrom);
}

template <typename Inputs>
StatusOr<std::vector<Argument>> AtenRun::startOn(Inputs& inputs, size_t flexibleFrom) {
  RECORD_FUNCTION(std::string_view(entry_.event), c10::ArrayRef<const c10::IValue>());
  const OperatorsOnly operatorsOnly;
  try {
    const OnDevice onDevice(entry_.backend->device());
    AG_RETURN_IF_ERROR(setInputs(entry_, inputs, frame()));
    frame().setFlexibleFrom(flexibleFrom);
    AG_RETURN_IF_ERROR(entry_.executor->run(lease_));
    return takeOutputs();
  } catch (const c10::Error& error) {  // torch ran out of memory while copying an input or an output
    return resourceExhausted(error.what_without_backtrace());
  }
}

StatusOr<std::vector<Argument>> AtenRun::resume() {
  RECORD_FUNCTION(std::string_view(entry_.event), c10::ArrayRef<const c10::IValue>());
  const OperatorsOnly operatorsOnly;
  try {
    const OnDevice onDevice(entry_.backend->device());
    AG_RETURN_IF_ERROR(entry_.executor->resume(lease_));
    return takeOutputs();
  } catch (const c10::Error& error) {
    return resourceExhausted(error.what_without_backtrace());
  }
}

std::vector<Argument> AtenRun::takeOutputs() {
  const Program& program = entry_.program();
  const std::vector<size_t>& taken = entry_.outputsOfStage[stage_++];
  std::vector<Argument> outputs(taken.size());
  for (size_t k = 0; k < taken.size(); ++k) {
    const size_t i = taken[k];
    if (entry_.isScalarOutput(i)) {
      outputs[k] = Executor::resolved(lease_).scalars[program.outputs[i]];
    } else if (program.outputs[i] != kNoValue) {
      outputs[k] = frame().takeOutput(i);
    }
  }
  return outputs;
}

}  // namespace agspeed::runtime::aten
