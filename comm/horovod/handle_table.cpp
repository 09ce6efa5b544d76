// SPDX-License-Identifier: Apache-2.0
#include "comm/horovod/handle_table.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace agspeed::comm::horovod {
namespace {

using Tensors = TensorGroup::Tensors;

/// The limit of operations in flight. A handle minus 1, modulo kMaxSlots, is the index of its slot.
constexpr int64_t kMaxSlots = int64_t{1} << 24;

bool areOfOneType(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const at::Tensor& each) { return each.scalar_type() == tensors[0].scalar_type(); });
}

Tensors pick(const Tensors& tensors, const std::vector<size_t>& places) {
  Tensors picked;
  if (tensors.empty()) return picked;
  for (const size_t place : places) picked.push_back(tensors[place]);
  return picked;
}

}  // namespace

int64_t HandleTable::start(TensorGroup& group, Request request, Tensors inputs, Tensors outputs, bool isList) {
  auto pending = std::make_shared<Started>();
  pending->numTensors = inputs.size();
  pending->isList = isList;
  if (areOfOneType(inputs)) {
    pending->parts.push_back({group.start(std::move(request), std::move(inputs), std::move(outputs)), {}});
  } else {
    std::vector<std::pair<at::ScalarType, std::vector<size_t>>> byType;  // in the order of the tensors
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto found = std::find_if(byType.begin(), byType.end(),
                                      [&](const auto& each) { return each.first == inputs[i].scalar_type(); });
      if (found == byType.end()) {
        byType.push_back({inputs[i].scalar_type(), {i}});
      } else {
        found->second.push_back(i);
      }
    }
    const auto nameOf = [&](at::ScalarType type) { return request.name + "." + c10::toString(type); };
    if (!request.name.empty()) {  // no part starts if one of them would be refused
      for (const auto& [type, places] : byType) group.checkName(nameOf(type));
    }
    for (auto& [type, places] : byType) {
      Request part = request;
      if (!part.name.empty()) part.name = nameOf(type);
      auto work = group.start(std::move(part), pick(inputs, places), pick(outputs, places));
      pending->parts.push_back({std::move(work), std::move(places)});
    }
  }
  const std::lock_guard lock(mutex_);
  reserve();
  return add({.started = std::move(pending), .reduction = nullptr});
}

void HandleTable::use(std::shared_ptr<TensorGroup> group) {
  const std::lock_guard lock(mutex_);
  group_.swap(group);  // the old group is destroyed after the lock is released
  ++numUses_;
}

HandleTable::Again HandleTable::startAgain(const std::shared_ptr<TensorGroup>& group, std::string_view name,
                                           PersistentReduction::Kind kind, const at::Tensor& input,
                                           const at::Tensor& output) {
  const std::span<const at::Tensor> inputs(&input, 1), outputs(&output, 1);
  const bool isInPlace = input.is_same(output);
  if (!PersistentReduction::canBind(inputs) || (!isInPlace && !PersistentReduction::canBind(outputs))) return {};
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<TensorGroup>& used = group != nullptr ? group : group_;
  if (used == nullptr) return {};
  reserve();
  std::shared_ptr<PersistentReduction> reduction = used->acquire(name, kind);
  if (reduction == nullptr) return {};
  const auto release = [&] {
    reduction->dropTensors();
    reduction->release();
  };
  try {
    used->bind(*reduction, inputs, outputs);
  } catch (...) {
    release();
    throw;
  }
  const StatusOr<bool> isKickDue = used->startQuietly(*reduction);
  if (isKickDue.hasValue()) {
    const uint64_t use = used == group_ ? numUses_ : 0;
    return {add({.started = nullptr, .reduction = std::move(reduction), .use = use}), *isKickDue ? used : nullptr};
  }
  release();
  return {};
}

void HandleTable::reserve() {
  if (!free_.empty()) return;
  if (free_.capacity() <= slots_.size()) free_.reserve(2 * slots_.size() + 1);  // so that take() cannot fail
  slots_.push_back({.handle = static_cast<int64_t>(slots_.size()) + 1 - kMaxSlots});
  free_.push_back(slots_.size() - 1);
}

int64_t HandleTable::add(InFlight pending) {
  Slot& slot = slots_[free_.back()];
  free_.pop_back();
  slot.handle += kMaxSlots;  // a new handle, which was never returned before
  slot.pending = std::move(pending);
  return slot.handle;
}

HandleTable::Slot* HandleTable::find(int64_t handle) {
  if (handle <= 0) return nullptr;
  const auto at = static_cast<size_t>((handle - 1) % kMaxSlots);
  if (at >= slots_.size()) return nullptr;
  Slot& slot = slots_[at];
  return slot.handle == handle && !slot.pending.isEmpty() ? &slot : nullptr;
}

HandleTable::InFlight HandleTable::take(Slot& slot) {
  free_.push_back(static_cast<size_t>(&slot - slots_.data()));
  return std::exchange(slot.pending, {});
}

std::optional<bool> HandleTable::poll(int64_t handle) {
  std::shared_ptr<Started> started;
  std::shared_ptr<PersistentReduction> reduction;  // keeps the world alive
  NamedHandle operation;  // read under the lock, because a thread that takes the reduction may change it
  {
    const std::lock_guard lock(mutex_);
    const Slot* slot = find(handle);
    if (slot == nullptr) return std::nullopt;
    started = slot->pending.started;
    reduction = slot->pending.reduction;
    if (reduction != nullptr) operation = reduction->operation();
  }
  if (operation != nullptr) return operation->poll();
  return std::all_of(started->parts.begin(), started->parts.end(), [](Part& part) { return part.work->poll(); });
}

std::optional<HandleTable::Reduced> HandleTable::takeReduced(int64_t handle) {
  PersistentReduction::Taken tensors;  // declared before the lock, so that the input is released after it
  const std::lock_guard lock(mutex_);
  Slot* slot = find(handle);
  if (slot == nullptr || slot->pending.reduction == nullptr) return std::nullopt;
  const NamedOperation& operation = *slot->pending.reduction->operation();
  if (!operation.isDone() || !operation.status().isOk()) return std::nullopt;
  InFlight taken = take(*slot);
  tensors = taken.reduction->takeTensors();
  taken.reduction->release();
  if (taken.use == numUses_)
    taken.reduction = nullptr;  // this is not the last reference, because the table's group_ keeps another one
  return Reduced{std::move(tensors.output), std::move(taken.reduction)};
}

std::optional<HandleTable::Result> HandleTable::wait(int64_t handle) {
  InFlight pending;
  {
    const std::lock_guard lock(mutex_);
    Slot* slot = find(handle);
    if (slot == nullptr) return std::nullopt;
    pending = take(*slot);
  }
  if (pending.started != nullptr) return finish(*pending.started);
  return Result{.outputs = {finish(*pending.reduction)}, .receivedRows = {}};
}

at::Tensor HandleTable::finish(PersistentReduction& reduction) {
  try {
    reduction.wait();
  } catch (...) {
    reduction.dropTensors();
    reduction.release();
    throw;
  }
  at::Tensor output = reduction.takeTensors().output;
  reduction.release();
  return output;
}

HandleTable::Result HandleTable::finish(Started& started) {
  Result result;
  result.isList = started.isList;
  result.outputs.resize(started.numTensors);
  for (Part& part : started.parts) {
    Tensors outputs = part.work->wait();
    if (part.places.empty()) {
      result.outputs = std::move(outputs);
    } else {
      for (size_t i = 0; i < outputs.size(); ++i) result.outputs[part.places[i]] = std::move(outputs[i]);
    }
  }
  result.receivedRows = started.parts[0].work->receivedRows();
  result.lastJoined = started.parts[0].work->lastJoined();
  return result;
}

}  // namespace agspeed::comm::horovod
