// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d/sparse_sum.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <exception>
#include <string>
#include <utility>

namespace agspeed::comm::c10d {
namespace {

constexpr int64_t kMaxDimensions = 12;

/// Returns the metadata that ranks exchange about a tensor: first the number of its elements, then its type, number of
/// sparse dimensions, number of dimensions and sizes. All but the first must be equal at all ranks.
at::Tensor metadataOf(const at::Tensor& tensor) {
  std::vector<int64_t> metadata = {tensor._nnz(), static_cast<int64_t>(tensor.scalar_type()), tensor.sparse_dim(),
                                   tensor.dim()};
  metadata.insert(metadata.end(), tensor.sizes().begin(), tensor.sizes().end());
  metadata.resize(4 + kMaxDimensions);
  return at::tensor(metadata, at::kLong);
}

int64_t numElements(const at::Tensor& metadata) { return metadata[0].item<int64_t>(); }

bool areAlike(const at::Tensor& metadata, const at::Tensor& others) {
  return metadata.slice(0, 1).equal(others.slice(0, 1));
}

std::string describe(const at::Tensor& metadata) {
  const auto sizes = metadata.slice(0, 4, 4 + metadata[3].item<int64_t>()).contiguous();
  return c10::str(static_cast<at::ScalarType>(metadata[1].item<int64_t>()), " of ",
                  at::IntArrayRef(sizes.const_data_ptr<int64_t>(), static_cast<size_t>(sizes.numel())), ", ",
                  metadata[2].item<int64_t>(), " dimensions sparse");
}

/// Returns uninitialized indices and values for `count` elements of a tensor like `tensor`.
std::vector<at::Tensor> reserve(const at::Tensor& tensor, int64_t count) {
  std::vector<int64_t> sizes = tensor.sizes().slice(static_cast<size_t>(tensor.sparse_dim())).vec();
  sizes.insert(sizes.begin(), count);
  return {at::empty({tensor.sparse_dim(), count}, at::kLong), at::empty(sizes, tensor.scalar_type())};
}

}  // namespace

c10::intrusive_ptr<SparseSum> SparseSum::start(const at::Tensor& tensor, SparseLinks links) {
  TORCH_CHECK_VALUE(tensor.is_cpu(), "agspeed: all_reduce: a sparse tensor is on ", tensor.device(),
                    ": move it to the CPU first");
  TORCH_CHECK_VALUE(tensor.dim() <= kMaxDimensions, "agspeed: all_reduce: a sparse tensor has ", tensor.dim(),
                    " dimensions, at most ", kMaxDimensions, " are possible");
  auto sum = c10::intrusive_ptr<SparseSum>::unsafe_steal_from_new(new SparseSum(tensor, std::move(links)));
  sum->gatherMetadata();
  return sum;
}

SparseSum::SparseSum(const at::Tensor& tensor, SparseLinks links)
    : ::c10d::Work(links.rank, ::c10d::OpType::_ALLREDUCE_SPARSE, "agspeed:sparse_all_reduce", Tensors{tensor}),
      links_(std::move(links)),
      tensor_(tensor),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors())) {}

void SparseSum::gatherMetadata() {
  const at::NoGradGuard noGrad;
  own_ = tensor_.coalesce();
  then(links_.allGather(metadata_, metadataOf(own_)), &SparseSum::exchangeElements);
}

void SparseSum::exchangeElements() {
  const auto self = static_cast<size_t>(links_.rank);
  for (size_t rank = 0; rank < metadata_.size(); ++rank) {
    TORCH_CHECK_VALUE(areAlike(metadata_[rank], metadata_[self]),
                      "agspeed: all_reduce: sparse dimensions do not match: rank ", rank, " has ",
                      describe(metadata_[rank]), "; rank ", self, " has ", describe(metadata_[self]));
    elements_.push_back(reserve(own_, numElements(metadata_[rank])));
  }
  elements_[self] = {own_.indices().contiguous(), own_.values().contiguous()};
  const Tensors own = elements_[self];
  then(links_.exchange(own, elements_), &SparseSum::addUp);
}

void SparseSum::addUp() {
  Tensors indices, values;
  for (const Tensors& each : elements_) {
    indices.push_back(each[0]);
    values.push_back(each[1]);
  }
  const at::Tensor all = at::sparse_coo_tensor(at::cat(indices, 1), at::cat(values), tensor_.sizes());
  at::Tensor(tensor_).copy_(all.coalesce());
  end(nullptr);
}

void SparseSum::then(const SparseLinks::TorchWork& work, void (SparseSum::*step)()) {
  auto self = c10::intrusive_ptr<SparseSum>::unsafe_reclaim_from_nonowning(this);
  work->getFuture()->addCallback([self = std::move(self), step](c10::ivalue::Future& done) {
    if (done.hasError()) return self->end(done.exception_ptr());
    try {
      // Tensors that `step` makes become part of the result. So they must be inference tensors if the result is one.
      const c10::InferenceMode mode(self->tensor_.is_inference());
      const at::NoGradGuard noGrad;
      (self.get()->*step)();
    } catch (...) {
      self->end(std::current_exception());
    }
  });
}

void SparseSum::end(const std::exception_ptr& failure) {
  const SparseLinks last = std::exchange(links_, {});
  if (failure == nullptr) {
    future_->markCompleted(c10::IValue(at::TensorList(tensor_)));
  } else {
    future_->setError(failure);
  }
  finish(failure);
}

}  // namespace agspeed::comm::c10d
