// SPDX-License-Identifier: Apache-2.0
#include "runtime/autograd/staged_run.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/TensorImpl.h>

#include <utility>

namespace agspeed::runtime::autograd {
namespace {

void deleteRun(void* run) { delete static_cast<StagedRun*>(run); }

}  // namespace

at::Tensor makeToken(std::unique_ptr<StagedRun> run, const at::TensorOptions& options) {
  StagedRun* owned = run.release();
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(owned, owned, &deleteRun, options.device()),
                       /*allocator=*/nullptr, /*resizable=*/false);
  const c10::DispatchKeySet keys(options.computeDispatchKey());
  return at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, options.dtype());
}

StagedRun& runOf(const at::Tensor& token) {
  TORCH_CHECK(token.defined() && token.has_storage() && token.storage().data_ptr().get_deleter() == &deleteRun,
              "a later stage of a compiled backward was reached without the stages before it: a hook of the graph "
              "dropped or replaced its gradients; switch agspeed off around this call with agspeed.paused()");
  return *static_cast<StagedRun*>(token.storage().data_ptr().get());
}

}  // namespace agspeed::runtime::autograd
