// SPDX-License-Identifier: Apache-2.0
#include "comm/horovod/tensor_group.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/c10d/arguments.h"
#include "comm/c10d/torch_store.h"

namespace agspeed::comm::horovod {
namespace {

Clock::duration duration(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

/// Returns an uninitialized CPU tensor like `like`, but with this number of rows. The engine's driver calls it. The
/// driver's thread may have another inference mode than the thread that made `like`, so this function sets the mode.
at::Tensor emptyWithRows(const at::Tensor& like, int64_t rows) {
  const c10::InferenceMode mode(like.is_inference());
  std::vector<int64_t> sizes = like.sizes().vec();
  sizes[0] = rows;
  return at::empty(sizes, like.options().device(at::kCPU));
}

void checkInput(const at::Tensor& input, bool isReduction) {
  TORCH_CHECK_VALUE(!isReduction || isReduced(input.scalar_type()), "Tensor type ", input.toString(),
                    " is not supported.");
  TORCH_CHECK_VALUE(input.is_contiguous(), "Tensor is required to be contiguous.");
}

Request requestFor(std::string_view name, PersistentReduction::Kind kind) {
  Request request;
  request.kind = NamedKind::kAllReduce;
  request.isCacheable = true;
  request.reduction = kind.reduction;
  request.prescale = kind.prescale;
  request.postscale = kind.postscale;
  request.name = name;
  return request;
}

}  // namespace

std::shared_ptr<TensorGroup> TensorGroup::create(const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size,
                                                 TensorGroupOptions options) {
  std::shared_ptr<World> world = World::ofDefaultGroup();
  if (world != nullptr) c10d::checkNotForked(*world);
  if (world == nullptr) {
    const auto timeout = std::chrono::duration_cast<std::chrono::milliseconds>(duration(options.timeoutSeconds));
    world = c10d::valueOrThrow(World::create(c10d::TorchStore::onOwnConnection(store), rank, size, timeout));
  }
  TORCH_CHECK_VALUE(world->rank() == rank && world->size() == size, "agspeed: rank ", rank, " of ", size,
                    " cannot join the default process group of torch, where it is rank ", world->rank(), " of ",
                    world->size(), ": start both with the same ranks");
  // One world may have several global groups, one after another, so each gets a number.
  const int64_t number = c10d::valueOrThrow(world->store().add(formatText("horovod/made/{}", rank), 1));
  std::vector<int> members(static_cast<size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  return std::shared_ptr<TensorGroup>(
      new TensorGroup(std::move(world), options, formatText("horovod/{}", number), std::move(members)));
}

std::shared_ptr<TensorGroup> TensorGroup::createPart(std::vector<int> ranks) {
  c10d::checkNotForked(*world_);
  const uint64_t number = ++numParts_;  // all ranks get the same number
  std::sort(ranks.begin(), ranks.end());
  if (std::find(ranks.begin(), ranks.end(), world_->rank()) == ranks.end()) return nullptr;
  return std::shared_ptr<TensorGroup>(
      new TensorGroup(world_, options_, formatText("{}/part/{}", prefix_, number), std::move(ranks)));
}

TensorGroup::TensorGroup(std::shared_ptr<World> world, TensorGroupOptions options, std::string prefix,
                         std::vector<int> members)
    : world_(std::move(world)), options_(options), prefix_(std::move(prefix)) {
  NamedOptions named;
  named.group.name = prefix_;
  named.group.members = std::move(members);
  named.group.timeout = duration(options_.timeoutSeconds);
  named.plan = options_.plan;
  named.cacheCapacity = options_.cacheCapacity;
  named.stallWarning = duration(options_.stallWarningSeconds);
  named.stallShutdown = duration(options_.stallShutdownSeconds);
  group_ = c10d::valueOrThrow(createNamedGroup(*world_, std::move(named)));
}

TensorGroup::~TensorGroup() {
  if (world_->isForked()) (void)group_.release();
}

void TensorGroup::shutdown() {
  if (!world_->isForked()) group_->shutdown();
}

std::unique_ptr<TensorWork> TensorGroup::start(Request request, Tensors inputs, Tensors outputs) {
  c10d::checkNotForked(*world_);
  if (request.name.empty()) {
    const std::lock_guard lock(mutex_);
    request.name = formatText("{}.noname.{}", toString(request.kind), ++numUnnamed_[request.kind]);
  }
  auto state = std::make_shared<TensorWork::State>();
  state->world = world_;
  NamedCall call;
  const bool isReduction = request.kind == NamedKind::kAllReduce || request.kind == NamedKind::kReduceScatter;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor& input = inputs[i];
    checkInput(input, isReduction);
    request.dtype = isReduction ? c10d::reducibleTypeOf(input) : c10d::movableTypeOf(input);
    request.isOnDevice = !input.is_cpu();
    request.shapes.push_back(input.sizes().vec());
    const bool isInPlace = !outputs.empty() && outputs[i].data_ptr() == input.data_ptr();
    call.inputs.push_back(isInPlace ? state->buffers.update(input) : state->buffers.read(input));
    if (outputs.empty()) continue;
    call.outputs.push_back(isInPlace ? call.inputs.back() : state->buffers.write(outputs[i]));
  }
  if (outputs.empty()) {
    call.allocate = [raw = state.get()](const Dimensions& rows) -> StatusOr<BufferList> {
      BufferList bytes;
      try {
        for (size_t i = 0; i < rows.size(); ++i) {
          const at::Tensor& made = raw->outputs.emplace_back(emptyWithRows(raw->inputs[i], rows[i]));
          bytes.emplace_back(static_cast<std::byte*>(made.data_ptr()), made.nbytes());
        }
      } catch (const std::exception& error) {
        return resourceExhausted("no memory for the result: {}", c10d::messageOf(error));
      }
      return bytes;
    };
  }
  call.readiness = state->buffers.readiness();
  call.request = std::move(request);
  state->inputs = std::move(inputs);
  state->outputs = std::move(outputs);
  return std::make_unique<TensorWork>(c10d::valueOrThrow(group_->start(std::move(call))), state);
}

void TensorGroup::checkName(const std::string& name) {
  c10d::checkNotForked(*world_);
  if (const Status status = group_->admits(name); !status.isOk()) c10d::raise(status);
}

void TensorGroup::bind(PersistentReduction& reduction, Span inputs, Span outputs) {
  reduction.bind(*group_, inputs, outputs);
}

void TensorGroup::startAll(std::span<PersistentReduction* const> reductions) {
  c10d::checkNotForked(*world_);
  std::vector<NamedHandle> operations;
  operations.reserve(reductions.size());
  for (const PersistentReduction* each : reductions) operations.push_back(each->operation());
  if (operations.empty()) return;
  if (const Status status = group_->startAll(operations); !status.isOk()) c10d::raise(status);
}

TensorGroup::Recurring* TensorGroup::findRecurring(std::string_view name) {
  Recurring* const guess = lastAcquired_ != nullptr ? lastAcquired_->next : nullptr;
  if (guess != nullptr && guess->reduction->name() == name) return guess;
  const auto found = recurring_.find(name);
  return found == recurring_.end() ? nullptr : &found->second;
}

bool TensorGroup::hasRoom() {
  if (recurring_.size() < options_.cacheCapacity) return true;
  if (!released_->exchange(false, std::memory_order_acquire)) return false;
  if (std::erase_if(recurring_, [](const auto& each) { return each.second.reduction->tryAcquire(); }) == 0)
    return false;
  for (auto& [name, each] : recurring_) each.next = nullptr;
  lastAcquired_ = nullptr;
  return true;
}

std::shared_ptr<PersistentReduction> TensorGroup::acquire(std::string_view name, PersistentReduction::Kind kind) {
  c10d::checkNotForked(*world_);
  const auto make = [&] {
    auto made = std::make_shared<PersistentReduction>(world_, requestFor(name, kind), released_);
    made->tryAcquire();
    return made;
  };
  Recurring* found = findRecurring(name);
  if (found == nullptr) {
    if (!hasRoom()) return nullptr;
    found = &recurring_.emplace(name, Recurring{make()}).first->second;
  } else if (!found->reduction->tryAcquire()) {
    return nullptr;
  } else if (found->reduction->kind() != kind) {
    found->reduction = make();
  }
  if (lastAcquired_ != nullptr) lastAcquired_->next = found;
  lastAcquired_ = found;
  return found->reduction;
}

void TensorGroup::restartNames() {
  const std::lock_guard lock(mutex_);
  numUnnamed_.clear();
}

void TensorGroup::startTimeline(const std::string& path, bool marksCycles) {
  stopTimeline();
  if (rank() != 0) return;
  timeline_ = c10d::valueOrThrow(Timeline::open(path, marksCycles));
  group_->setTimeline(timeline_);
}

void TensorGroup::stopTimeline() {
  if (timeline_ == nullptr || world_->isForked()) return;
  group_->setTimeline(nullptr);
  timeline_->close();
  timeline_ = nullptr;
}

}  // namespace agspeed::comm::horovod
