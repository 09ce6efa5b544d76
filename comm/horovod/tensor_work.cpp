// SPDX-License-Identifier: Apache-2.0
#include "comm/horovod/tensor_work.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

namespace agspeed::comm::horovod {

void raiseFailed(const Status& status) { C10_THROW_ERROR(DistBackendError, status.message()); }

TensorWork::~TensorWork() {
  // Release the tensors on a callback thread, because releasing them may need Python's lock, which the driver must not
  // take.
  if (!operation_->isDone()) operation_->whenDone([state = state_](const Status&) {});
}

TensorWork::Tensors TensorWork::wait() {
  if (const Status status = operation_->wait(); !status.isOk()) raiseFailed(status);
  if (isFinished_) return state_->outputs;
  isFinished_ = true;
  state_->buffers.finish();
  if (state_->buffers.staging() != nullptr) state_->buffers.staging()->join();
  if (state_->inputs.empty() || state_->inputs[0].is_cpu()) return state_->outputs;
  for (at::Tensor& output : state_->outputs) {
    if (output.is_cpu()) output = output.to(state_->inputs[0].device());
  }
  return state_->outputs;
}

}  // namespace agspeed::comm::horovod
