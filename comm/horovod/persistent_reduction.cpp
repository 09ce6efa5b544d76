// SPDX-License-Identifier: Apache-2.0
#include "comm/horovod/persistent_reduction.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "comm/c10d/buffers.h"
#include "comm/horovod/tensor_work.h"

namespace agspeed::comm::horovod {
namespace {

std::span<std::byte> memoryOf(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

}  // namespace

bool isReduced(at::ScalarType type) {
  return type == at::kInt || type == at::kLong || type == at::kHalf || type == at::kBFloat16 || type == at::kFloat ||
         type == at::kDouble;
}

std::optional<NamedReduction> reductionOf(int64_t number) {
  switch (number) {
    case 0: return NamedReduction::kAverage;
    case 1: return NamedReduction::kSum;
    case 3: return NamedReduction::kMin;
    case 4: return NamedReduction::kMax;
    case 5: return NamedReduction::kProduct;
    default: return std::nullopt;
  }
}

PersistentReduction::~PersistentReduction() {
  if (outputs_.empty() || operation_->isDone()) return;
  // Release the tensors on a callback thread, because releasing them may need Python's lock, which the driver must not
  // take.
  operation_->whenDone([world = world_, inputs = std::move(inputs_), outputs = std::move(outputs_)](const Status&) {});
}

bool PersistentReduction::canBind(Tensors tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& each) {
    return each.is_cpu() && each.layout() == at::kStrided && each.is_contiguous() &&
           each.scalar_type() == tensors[0].scalar_type() && isReduced(each.scalar_type());
  });
}

bool PersistentReduction::fits(Tensors tensors) const {
  if (operation_ == nullptr || tensors[0].scalar_type() != type_ || !tensors[0].sizes().equals(shape_)) return false;
  if (tensors.size() == 1 && operation_->numTensors() == 1) return true;
  const std::vector<Dimensions>& shapes = operation_->request().shapes;
  return std::equal(tensors.begin(), tensors.end(), shapes.begin(), shapes.end(),
                    [](const at::Tensor& tensor, const Dimensions& shape) { return tensor.sizes().equals(shape); });
}

void PersistentReduction::bind(NamedGroup& group, Tensors inputs, Tensors outputs) {
  if (!fits(inputs)) {
    NamedCall call{.request = request_};
    call.request.dtype = c10d::reducibleTypeOf(inputs[0]);
    for (const at::Tensor& each : inputs) call.request.shapes.push_back(each.sizes().vec());
    call.inputs.resize(inputs.size());
    call.outputs.resize(inputs.size());
    operation_ = group.prepare(std::move(call));
    type_ = inputs[0].scalar_type();
    shape_ = inputs[0].sizes();
  }
  for (size_t i = 0; i < inputs.size(); ++i) operation_->setBuffers(i, memoryOf(inputs[i]), memoryOf(outputs[i]));
  if (!inputs[0].is_same(outputs[0])) inputs_.assign(inputs.begin(), inputs.end());
  outputs_.assign(outputs.begin(), outputs.end());
}

void PersistentReduction::wait() {
  if (!operation_->isDone()) std::ignore = operation_->wait();
  if (const Status& status = operation_->status(); !status.isOk()) raiseFailed(status);
}

PersistentReduction::Taken PersistentReduction::takeTensors() {
  Taken taken{std::move(outputs_[0]), inputs_.empty() ? at::Tensor() : std::move(inputs_[0])};
  dropTensors();
  return taken;
}

void PersistentReduction::dropTensors() {
  inputs_.clear();
  outputs_.clear();
}

}  // namespace agspeed::comm::horovod
