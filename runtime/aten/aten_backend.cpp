// SPDX-License-Identifier: Apache-2.0
#include "runtime/aten/aten_backend.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "runtime/aten/parallel.h"
#include "runtime/aten/tensors.h"

namespace agspeed::runtime::aten {

// --- AtenBackend -----------------------------------------------------------------------------------------------------

AtenBackend::AtenBackend(const Program& program, const std::vector<at::Tensor>& constants)
    : program_(program), constants_(constants), device_(aten::deviceOf(program.device)) {}

StatusOr<std::shared_ptr<AtenBackend>> AtenBackend::create(const Program& program,
                                                           const std::vector<at::Tensor>& constants) {
  std::shared_ptr<AtenBackend> backend(new AtenBackend(program, constants));
  for (const Instruction& instruction : program.instructions) {
    const auto* call = std::get_if<ExternalCall>(&instruction.op);
    if (call == nullptr) continue;
    StatusOr<OperatorCall> bound = OperatorCall::bind(*call);
    if (!bound.hasValue()) return bound.status().withContext(instruction.origin);
    backend->calls_.push_back(*std::move(bound));
  }
  backend->findRoots();
  return backend;
}

void AtenBackend::findRoots() {
  roots_.resize(program_.values.size());
  std::iota(roots_.begin(), roots_.end(), 0);
  auto call = calls_.begin();
  for (const Instruction& instruction : program_.instructions) {
    if (const auto* view = std::get_if<View>(&instruction.op)) {
      roots_[view->value] = roots_[program_.values[view->value].source];
    }
    if (!std::holds_alternative<ExternalCall>(instruction.op)) continue;
    for (size_t i = 0; i < call->results().size(); ++i) {
      const ValueId source = call->aliasOfResult(i);
      if (call->results()[i] != kNoValue && source != kNoValue) roots_[call->results()[i]] = roots_[source];
    }
    ++call;
  }
}

std::unique_ptr<TensorFrame> AtenBackend::newFrame() const { return std::make_unique<AtenFrame>(*this); }

StatusOr<std::unique_ptr<PreparedCalls>> AtenBackend::prepare(const ResolvedProgram& resolved) const {
  auto prepared = std::make_unique<AtenCalls>();
  for (const OperatorCall& call : calls_) {
    StatusOr<std::vector<c10::IValue>> arguments = call.resolveArguments(resolved.symbols);
    if (!arguments.hasValue()) return arguments.status().withContext(c10::toString(call.handle().operator_name()));
    prepared->arguments.push_back(*std::move(arguments));
  }
  return std::unique_ptr<PreparedCalls>(std::move(prepared));
}

// --- AtenFrame -------------------------------------------------------------------------------------------------------

AtenFrame::AtenFrame(const AtenBackend& backend)
    : backend_(backend), slots_(backend.program().values.size()), integers_(backend.program().inputs.size()) {
  const Program& program = backend.program();
  for (size_t id = 0; id < program.values.size(); ++id) {
    const ValueDecl& decl = program.values[id];
    if (decl.storage == Storage::kConstant) {
      slots_[id] = backend.constants()[decl.index];
    } else if (decl.storage == Storage::kArena ||
               (decl.storage == Storage::kView && program.values[decl.source].storage == Storage::kArena)) {
      inArena_.push_back(static_cast<ValueId>(id));
    } else if (!decl.isScalar) {
      transient_.push_back(static_cast<ValueId>(id));
    }
  }
  for (auto output = program.outputs.begin(); output != program.outputs.end(); ++output) {
    const ValueId root = *output == kNoValue ? kNoValue : backend.root(*output);
    constantOutput_.push_back(root != kNoValue && program.values[root].storage == Storage::kConstant);
    lastOutput_.push_back(std::find(output + 1, program.outputs.end(), *output) == program.outputs.end());
  }
}

bool AtenFrame::isInArena(const at::Tensor& tensor) const {
  const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
  return arena_ != nullptr && data >= arena_ && data < arena_ + resolved_->arenaBytes;
}

at::Tensor AtenFrame::takeOutput(size_t index) {
  const ValueId id = backend_.program().outputs[index];
  if (id == kNoValue || !slots_[id].defined()) return {};
  // Memory that exists before or after the call must not be handed out.
  if (constantOutput_[index] || isInArena(slots_[id])) return copyWithLayout(slots_[id], resolved_->layouts[id]);
  return lastOutput_[index] ? std::move(slots_[id]) : slots_[id];
}

int64_t AtenFrame::inputSize(int32_t input, int32_t dim) const {
  if (dim == -1) return integers_[input];
  const at::Tensor& tensor = slots_[backend_.program().inputs[input]];
  return tensor.defined() && dim < tensor.dim() ? tensor.size(dim) : 0;
}

Status AtenFrame::checkInput(size_t index) {
  const ValueId id = backend_.program().inputs[index];
  if (backend_.program().values[id].isScalar) {
    if (integers_[index] == resolved_->scalars[id]) return {};
    return invalidArgument("input {} is {} where the graph was compiled for {}", index, integers_[index],
                           resolved_->scalars[id]);
  }
  const TensorLayout& layout = resolved_->layouts[id];
  const c10::Device device = backend_.deviceOf(id);
  if (matches(slots_[id], layout, device)) return {};
  if (index >= flexibleFrom_ && matchesExceptStrides(slots_[id], layout, device)) {
    slots_[id] = copyWithLayout(slots_[id], layout);
    return {};
  }
  return invalidArgument("input {} is {} where the graph was compiled for {}", index, describe(slots_[id]),
                         toString(layout, device));
}

// From the caching allocator. After the call frees it, later work of the same stream reuses it.
StatusOr<std::byte*> AtenFrame::allocateArena(int64_t bytes) {
  const TensorLayout layout{DType::kU8, {bytes}, {1}, bytes};
  try {
    arenaOnDevice_ = emptyTensor(layout, backend_.device());
  } catch (const std::exception& error) {
    return resourceExhausted(error.what());
  }
  return static_cast<std::byte*>(arenaOnDevice_.mutable_data_ptr());
}

void* AtenFrame::stream() const {
  const c10::impl::VirtualGuardImpl guard(backend_.device().type());
  return guard.getStreamNativeHandle(guard.getStream(backend_.device()));
}

void AtenFrame::moveArena(std::byte* arena) {
  for (ValueId id : inArena_) slots_[id].reset();
  arena_ = arena;
}

Status AtenFrame::begin(const ResolvedProgram& resolved, std::byte* arena) {
  if (resolved_ != &resolved || arena_ != arena) moveArena(arena);
  resolved_ = &resolved;
  calls_ = static_cast<const AtenCalls*>(resolved.calls.get());
  for (size_t i = 0; i < backend_.program().inputs.size(); ++i) AG_RETURN_IF_ERROR(checkInput(i));
  return {};
}

const at::Tensor& AtenFrame::tensor(ValueId value) {
  at::Tensor& slot = slots_[value];
  if (!slot.defined() && resolved_->arenaOffsets[value] >= 0) {
    c10::InferenceMode normalTensor(false);  // the wrapper outlives this call
    slot = wrapMemory(resolved_->layouts[value], arena_ + resolved_->arenaOffsets[value], backend_.device());
  }
  return slot;
}

// A view of the arena stays valid for later calls, like the tensor that it is a view of.
void AtenFrame::view(ValueId value) {
  const ValueId source = backend_.program().values[value].source;
  const bool isLasting = resolved_->arenaOffsets[source] >= 0;
  if (isLasting && slots_[value].defined()) return;
  std::optional<c10::InferenceMode> normalTensor;
  if (isLasting) normalTensor.emplace(false);
  slots_[value] = viewOf(tensor(source), resolved_->layouts[value], resolved_->viewOffsets[value]);
}

void* AtenFrame::data(ValueId value) { return const_cast<void*>(tensor(value).const_data_ptr()); }

Status AtenFrame::allocate(ValueId value) {
  try {
    slots_[value] = emptyTensor(resolved_->layouts[value], backend_.device());
    return {};
  } catch (const std::exception& error) {
    return resourceExhausted(error.what());
  }
}

c10::IValue AtenFrame::tensorArgument(const OperatorCall::TensorArgument& argument) {
  if (argument.isOptionalList) {
    c10::List<std::optional<at::Tensor>> list;
    list.reserve(argument.values.size());
    for (ValueId id : argument.values) list.push_back(id == kNoValue ? std::nullopt : std::optional(tensor(id)));
    return list;
  }
  if (argument.isList) {
    c10::List<at::Tensor> list;
    list.reserve(argument.values.size());
    for (ValueId id : argument.values) list.push_back(tensor(id));
    return list;
  }
  const ValueId id = argument.values.front();
  if (id == kNoValue) return {};
  if (backend_.program().values[id].isScalar) return resolved_->scalars[id];
  return tensor(id);
}

Status AtenFrame::call(size_t index) {
  const OperatorCall& call = backend_.calls()[index];
  const std::vector<c10::IValue>& prepared = calls_->arguments[index];
  try {
    stack_.assign(prepared.begin(), prepared.end());
    for (const OperatorCall::TensorArgument& argument : call.tensorArguments()) {
      stack_[argument.position] = tensorArgument(argument);
    }
    call.handle().callBoxed(stack_);
    Status status = storeResults(call);
    stack_.clear();
    return status;
  } catch (const c10::OutOfMemoryError& error) {
    stack_.clear();
    return resourceExhausted(error.what_without_backtrace());
  } catch (const c10::Error& error) {
    stack_.clear();
    return invalidArgument(error.what_without_backtrace());
  } catch (const std::exception& error) {
    stack_.clear();
    return invalidArgument(error.what());
  }
}

Status AtenFrame::storeResults(const OperatorCall& call) {
  const std::vector<ValueId>& results = call.results();
  size_t next = 0;
  const auto store = [&](at::Tensor tensor) -> Status {
    if (next >= results.size() || results[next] == kNoValue) return (++next, Status());
    return storeResult(results[next++], std::move(tensor));
  };
  for (c10::IValue& value : stack_) {
    if (value.isTensor()) {
      AG_RETURN_IF_ERROR(store(std::move(value).toTensor()));
    } else if (value.isTensorList()) {
      for (at::Tensor tensor : value.toTensorVector()) AG_RETURN_IF_ERROR(store(std::move(tensor)));
    } else {
      ++next;  // numbers among the results are expressions in the graph
    }
  }
  if (next < results.size()) return internalError("returned fewer results than the Program reads");
  return {};
}

Status AtenFrame::storeResult(ValueId value, at::Tensor tensor) {
  const TensorLayout& layout = resolved_->layouts[value];
  const c10::Device device = backend_.deviceOf(value);
  if (matches(tensor, layout, device)) {
    slots_[value] = std::move(tensor);
  } else if (matchesExceptStrides(tensor, layout, device)) {
    slots_[value] = copyWithLayout(tensor, layout);
  } else {
    return internalError("returned " + describe(tensor) + " where the Program declares " + toString(layout, device));
  }
  return {};
}

void AtenFrame::release(ValueId value) { slots_[value].reset(); }

void AtenFrame::end() {
  for (ValueId id : transient_) slots_[id].reset();
  arenaOnDevice_.reset();
}

void AtenBackend::parallelFor(int64_t extent, int64_t grain, const KernelLaunch& launch) const {
  runInSlices(extent, grain, launch);
}

bool AtenBackend::isProfiling() const { return at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value(); }

Status AtenBackend::profiled(const std::string& name, const std::function<Status()>& work) const {
  RECORD_FUNCTION(std::string_view(name), c10::ArrayRef<const c10::IValue>());
  return work();
}

}  // namespace agspeed::runtime::aten
