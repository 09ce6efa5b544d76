// SPDX-License-Identifier: Apache-2.0
#include "runtime/executor.h"

#include <algorithm>
#include <utility>

namespace agspeed::runtime {

/// An Instruction, flattened. Ranges are indices into the Executor's operands_ and fresh_.
struct Executor::Step {
  enum class Kind : uint8_t { kKernel, kExternal, kView, kRelease, kReady };
  Kind kind = Kind::kKernel;
  KernelLaunch kernel;  ///< kKernel; pointers and integers are filled per call
  size_t index = 0;     ///< kKernel: which launch; kExternal: which external call
  ValueId value = 0;    ///< kView, kRelease
  size_t firstOperand = 0, endOperand = 0;
  size_t firstFresh = 0, endFresh = 0;
  const Instruction* instruction = nullptr;
};

/// The reusable state of one call in flight.
struct Executor::Call {
  std::unique_ptr<TensorFrame> frame;
  Resolved resolved;
  ArenaPool::Buffer buffer;    ///< memory of the host
  std::byte* arena = nullptr;  ///< in `buffer`, or memory of a device
  void* stream = nullptr;      ///< stream of a device
  size_t nextStep = 0;
  std::vector<void*> pointers;  ///< scratch: a kernel's operands
  std::vector<int64_t> symbols;
};

namespace {

// All values an instruction touches, in order.
std::vector<ValueId> valuesOf(const Instruction& instruction) {
  if (const auto* kernel = std::get_if<KernelCall>(&instruction.op)) return kernel->operands;
  std::vector<ValueId> values;
  if (const auto* call = std::get_if<ExternalCall>(&instruction.op)) {
    for (const ExternalArg& arg : call->args) values.insert(values.end(), arg.values.begin(), arg.values.end());
  }
  return values;
}

std::string describe(const Instruction& instruction) {
  const auto* call = std::get_if<ExternalCall>(&instruction.op);
  const std::string what = call != nullptr ? call->op : "memory allocation";
  return instruction.origin.empty() ? what : what + " (" + instruction.origin + ")";
}

}  // namespace

Executor::Executor(std::shared_ptr<const Executable> executable, const Program& program,
                   std::shared_ptr<TensorBackend> backend, std::shared_ptr<ArenaPool> arenas)
    : executable_(std::move(executable)), program_(program), backend_(std::move(backend)), arenas_(std::move(arenas)) {}

Executor::~Executor() {
  for (std::atomic<Call*>& slot : idle_) delete slot.load();
}

StatusOr<std::unique_ptr<Executor>> Executor::create(std::shared_ptr<const Executable> executable,
                                                     const std::string& entry, std::shared_ptr<TensorBackend> backend,
                                                     std::shared_ptr<ArenaPool> arenas) {
  const auto found = executable->entries.find(entry);
  if (found == executable->entries.end()) return invalidArgument("this Executable has no entry \"" + entry + "\"");
  const Program& program = found->second;
  std::unique_ptr<Executor> executor(
      new Executor(std::move(executable), program, std::move(backend), std::move(arenas)));
  executor->flatten();
  if (program.symbols.empty()) {
    AG_ASSIGN_OR_RETURN(executor->staticResolved_, executor->resolveFor({}));
  }
  return executor;
}

void Executor::flatten() {
  std::vector<bool> allocated(program_.values.size(), false);
  size_t launches = 0;
  size_t calls = 0;
  for (const Instruction& instruction : program_.instructions) {
    Step step;
    step.instruction = &instruction;
    step.firstOperand = operands_.size();
    step.firstFresh = fresh_.size();
    for (ValueId id : valuesOf(instruction)) {
      operands_.push_back(id);
      if (id == kNoValue || program_.values[id].storage != Storage::kFresh || allocated[id]) continue;
      allocated[id] = true;
      fresh_.push_back(id);
    }
    step.endOperand = operands_.size();
    step.endFresh = fresh_.size();
    if (const auto* kernel = std::get_if<KernelCall>(&instruction.op)) {
      const auto index = static_cast<size_t>(kernel->kernel);
      step.kernel = {executable_->kernels->kernel(index), executable_->kernels.get(), index, nullptr, nullptr};
      step.index = launches++;
    } else if (const auto* view = std::get_if<View>(&instruction.op)) {
      step.kind = Step::Kind::kView;
      step.value = view->value;
    } else if (const auto* release = std::get_if<Release>(&instruction.op)) {
      step.kind = Step::Kind::kRelease;
      step.value = release->value;
    } else if (std::holds_alternative<GradientsReady>(instruction.op)) {
      step.kind = Step::Kind::kReady;
    } else {
      step.kind = Step::Kind::kExternal;
      step.index = calls++;
    }
    steps_.push_back(step);
  }
}

StatusOr<Executor::Resolved> Executor::resolveFor(std::vector<int64_t> symbols) const {
  AG_ASSIGN_OR_RETURN(std::unique_ptr<ResolvedProgram> resolved, resolve(program_, std::move(symbols)));
  AG_ASSIGN_OR_RETURN(resolved->calls, backend_->prepare(*resolved));
  return Resolved(std::move(resolved));
}

StatusOr<Executor::Resolved> Executor::findResolved(const std::vector<int64_t>& symbols) const {
  std::lock_guard lock(recentMutex_);
  const auto found =
      std::find_if(recent_.begin(), recent_.end(), [&](const auto& resolved) { return resolved->symbols == symbols; });
  if (found != recent_.end()) {
    std::rotate(recent_.begin(), found, found + 1);
    return recent_.front();
  }
  AG_ASSIGN_OR_RETURN(Resolved resolved, resolveFor(symbols));
  recent_.insert(recent_.begin(), resolved);
  if (recent_.size() > kRecentSizes) recent_.pop_back();
  return resolved;
}

Status Executor::chooseResolved(Call& call) const {
  if (staticResolved_ != nullptr) {
    if (call.resolved == nullptr) call.resolved = staticResolved_;
    return {};
  }
  call.symbols.clear();
  for (const SymbolBinding& binding : program_.symbols) {
    call.symbols.push_back(binding.input < 0 ? 0 : call.frame->inputSize(binding.input, binding.dim));
  }
  if (call.resolved != nullptr && call.resolved->symbols == call.symbols) return {};
  AG_ASSIGN_OR_RETURN(call.resolved, findResolved(call.symbols));
  return {};
}

Status Executor::begin(Call& call) const {
  AG_RETURN_IF_ERROR(chooseResolved(call));
  AG_RETURN_IF_ERROR(takeArena(call));
  return call.frame->begin(*call.resolved, call.arena);
}

Status Executor::takeArena(Call& call) const {
  const int64_t bytes = call.resolved->arenaBytes;
  if (!program_.device.isHost()) {
    call.stream = call.frame->stream();
    call.arena = nullptr;
    if (bytes == 0) return {};
    AG_ASSIGN_OR_RETURN(call.arena, call.frame->allocateArena(bytes));
    return {};
  }
  call.buffer = arenas_->acquire(bytes);
  call.arena = call.buffer.data.get();
  if (bytes > 0 && call.arena == nullptr) return resourceExhausted("no memory for an arena of {} bytes", bytes);
  return {};
}

Status Executor::allocateFresh(const Step& step, Call& call) const {
  for (size_t i = step.firstFresh; i < step.endFresh; ++i) AG_RETURN_IF_ERROR(call.frame->allocate(fresh_[i]));
  return {};
}

Status Executor::launch(const Step& step, Call& call) const {
  const ResolvedLaunch& sizes = call.resolved->launches[step.index];
  if (sizes.extent <= 0) return {};
  call.pointers.clear();
  for (size_t i = step.firstOperand; i < step.endOperand; ++i) {
    const ValueId id = operands_[i];
    const int64_t offset = call.resolved->arenaOffsets[id];
    call.pointers.push_back(offset >= 0 ? call.arena + offset : call.frame->data(id));
  }
  if (sizes.hasOffsets) {
    const int64_t* offsets = call.resolved->operandOffsets.data() + sizes.firstOffset;
    for (void*& pointer : call.pointers) pointer = static_cast<std::byte*>(pointer) + *offsets++;
  }
  KernelLaunch kernel = step.kernel;
  kernel.pointers = call.pointers.data();
  kernel.integers = call.resolved->integers.data() + sizes.firstInteger;
  if (!program_.device.isHost()) {
    return kernel.library->enqueue(kernel.kernel, kernel.pointers, kernel.integers, 0, sizes.extent, call.stream)
        .withContext(step.instruction->origin);
  }
  if (sizes.extent <= sizes.grain) {
    kernel.run(0, sizes.extent);
  } else {
    backend_->parallelFor(sizes.extent, sizes.grain, kernel);
  }
  return {};
}

Status Executor::launchProfiled(const Step& step, Call& call) const {
  const std::string& name = std::get<KernelCall>(step.instruction->op).name;
  return backend_->profiled(name, [&] { return launch(step, call); });
}

Status Executor::runSteps(Call& call) const {
  const bool isProfiling = backend_->isProfiling();
  while (call.nextStep < steps_.size()) {
    const Step& step = steps_[call.nextStep++];
    if (step.firstFresh != step.endFresh) {
      AG_RETURN_IF_ERROR(allocateFresh(step, call).withContext(describe(*step.instruction)));
    }
    switch (step.kind) {
      case Step::Kind::kKernel:
        AG_RETURN_IF_ERROR(isProfiling ? launchProfiled(step, call) : launch(step, call));
        break;
      case Step::Kind::kView: call.frame->view(step.value); break;
      case Step::Kind::kRelease: call.frame->release(step.value); break;
      case Step::Kind::kReady: return {};
      case Step::Kind::kExternal:
        if (Status status = call.frame->call(step.index); !status.isOk()) {
          return status.withContext(describe(*step.instruction));
        }
        break;
    }
  }
  return {};
}

Status Executor::run(Lease& lease) const {
  Call& call = *lease.call_;
  AG_RETURN_IF_ERROR(begin(call));
  call.nextStep = 0;
  return runSteps(call);
}

Status Executor::resume(Lease& lease) const {
  Call& call = *lease.call_;
  if (!program_.device.isHost() && call.frame->stream() != call.stream) {
    return unsupported("a stage of this Program runs on another stream than the stage before it");
  }
  return runSteps(call);
}

const ResolvedProgram& Executor::resolved(const Lease& lease) { return *lease.call_->resolved; }

Executor::Lease Executor::lease() const {
  for (std::atomic<Call*>& slot : idle_) {
    if (Call* call = slot.exchange(nullptr, std::memory_order_acquire)) return {*this, std::unique_ptr<Call>(call)};
  }
  auto call = std::make_unique<Call>();
  call->frame = backend_->newFrame();
  return {*this, std::move(call)};
}

void Executor::giveBack(std::unique_ptr<Call> call) const {
  call->frame->end();
  arenas_->release(std::move(call->buffer));
  call->buffer = {};
  for (std::atomic<Call*>& slot : idle_) {
    Call* expected = nullptr;
    if (slot.compare_exchange_strong(expected, call.get(), std::memory_order_release)) {
      call.release();
      return;
    }
  }
}

Executor::Lease::Lease(const Executor& executor, std::unique_ptr<Call> call)
    : executor_(&executor), call_(std::move(call)) {}
Executor::Lease::Lease(Lease&&) noexcept = default;
Executor::Lease::~Lease() {
  if (call_ != nullptr) executor_->giveBack(std::move(call_));
}
TensorFrame& Executor::Lease::frame() const { return *call_->frame; }

}  // namespace agspeed::runtime
