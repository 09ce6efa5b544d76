// SPDX-License-Identifier: Apache-2.0
// PersistentReduction: an all-reduce of dense tensors in host memory that repeats every step under one name.
//
// It resembles a persistent operation of MPI: name, types and shapes are set once, and each start only sets the
// addresses of the tensors. TensorGroup starts it.
//
// Threading: one thread at a time, except tryAcquire() and release(). Ownership: keeps the tensors from bind() until
// dropTensors(). If it is destroyed earlier, the tensors are kept until the operation has completed. Keeps the world.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/api.h"

namespace agspeed::comm::horovod {

/// Whether the type can be reduced: Horovod's types and bfloat16.
bool isReduced(at::ScalarType type);

/// Returns the reduction that Horovod gives this number. Returns nothing for Adasum, which is not supported here, and
/// for unknown numbers.
std::optional<NamedReduction> reductionOf(int64_t number);

class PersistentReduction {
 public:
  using Tensors = std::span<const at::Tensor>;
  /// The values besides the tensors in which the reductions of one name may differ between calls.
  struct Kind {
    NamedReduction reduction = NamedReduction::kAverage;
    double prescale = 1, postscale = 1;

    bool operator==(const Kind&) const = default;
  };

  /// Prepares a reduction. `request`: an all-reduce without dtype and shapes, which bind() takes from the tensors.
  /// `released`: a flag that every call of release() sets to true, or null.
  PersistentReduction(std::shared_ptr<World> world, Request request,
                      std::shared_ptr<std::atomic<bool>> released = nullptr)
      : world_(std::move(world)), released_(std::move(released)), request_(std::move(request)) {}
  ~PersistentReduction();
  PersistentReduction(const PersistentReduction&) = delete;

  /// Whether these tensors can be bound. They must be dense, in host memory, and all of one type for which isReduced()
  /// is true. Requires: not empty.
  static bool canBind(Tensors tensors);

  const std::string& name() const { return request_.name; }
  Kind kind() const { return {request_.reduction, request_.prescale, request_.postscale}; }
  /// Sets the tensors that the next start reduces and writes; both may be the same. Requires: the reduction is not in
  /// flight, and canBind() is true for both.
  void bind(NamedGroup& group, Tensors inputs, Tensors outputs);
  const NamedHandle& operation() const { return operation_; }
  /// Returns the outputs of the last bind().
  Tensors outputs() const { return outputs_; }
  /// Waits until the started reduction has completed. Throws as TensorWork::wait().
  void wait();
  /// Releases the tensors. Requires: the reduction is not in flight.
  void dropTensors();
  /// The result of takeTensors().
  struct Taken {
    at::Tensor output, input;  ///< `input` is undefined if it is the same as the output
  };
  /// Returns the tensors of a reduction of one tensor, and keeps none. Unlike with dropTensors(), the caller decides
  /// when the tensors are released.
  Taken takeTensors();

  /// Takes a shared reduction for the caller alone, until release(). Returns false if another caller has taken it.
  bool tryAcquire() { return !isAcquired_.exchange(true, std::memory_order_acquire); }
  void release() {
    isAcquired_.store(false, std::memory_order_release);
    if (released_ != nullptr) released_->store(true, std::memory_order_release);
  }

 private:
  /// Whether operation_ has the type and the shapes of these tensors, so that bind() can reuse it.
  bool fits(Tensors tensors) const;

  const std::shared_ptr<World> world_;  ///< outlives the operation
  const std::shared_ptr<std::atomic<bool>> released_;
  std::atomic<bool> isAcquired_ = false;
  at::ScalarType type_ = at::kFloat;  ///< type of operation_'s tensors
  NamedHandle operation_;
  c10::DimVector shape_;                      ///< shape of operation_'s first tensor
  std::vector<at::Tensor> outputs_, inputs_;  ///< inputs_ is empty if the inputs are the outputs
  const Request request_;
};

}  // namespace agspeed::comm::horovod
