// SPDX-License-Identifier: Apache-2.0
#include "comm/horovod/handle_table.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace agspeed::comm {
namespace {

using Tensors = TensorGroup::Tensors;

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
    for (auto& [type, places] : byType) {
      Request part = request;
      if (!part.name.empty()) part.name += std::string(".") + c10::toString(type);
      auto work = group.start(std::move(part), pick(inputs, places), pick(outputs, places));
      pending->parts.push_back({std::move(work), std::move(places)});
    }
  }
  const std::lock_guard lock(mutex_);
  pending_[++lastHandle_] = std::move(pending);
  return lastHandle_;
}

std::optional<bool> HandleTable::poll(int64_t handle) {
  std::shared_ptr<Started> pending;
  {
    const std::lock_guard lock(mutex_);
    const auto found = pending_.find(handle);
    if (found == pending_.end()) return std::nullopt;
    pending = found->second;
  }
  return std::all_of(pending->parts.begin(), pending->parts.end(), [](Part& part) { return part.work->poll(); });
}

std::optional<HandleTable::Result> HandleTable::wait(int64_t handle) {
  std::shared_ptr<Started> pending;
  {
    const std::lock_guard lock(mutex_);
    const auto found = pending_.find(handle);
    if (found == pending_.end()) return std::nullopt;
    pending = std::move(found->second);
    pending_.erase(found);
  }
  Result result;
  result.isList = pending->isList;
  result.outputs.resize(pending->numTensors);
  for (Part& part : pending->parts) {
    Tensors outputs = part.work->wait();
    if (part.places.empty()) {
      result.outputs = std::move(outputs);
    } else {
      for (size_t i = 0; i < outputs.size(); ++i) result.outputs[part.places[i]] = std::move(outputs[i]);
    }
  }
  result.receivedRows = pending->parts[0].work->receivedRows();
  result.lastJoined = pending->parts[0].work->lastJoined();
  return result;
}

}  // namespace agspeed::comm
