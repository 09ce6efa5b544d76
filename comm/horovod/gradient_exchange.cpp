// SPDX-License-Identifier: Apache-2.0
#include "comm/horovod/gradient_exchange.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace agspeed::comm::horovod {

std::shared_ptr<GradientExchange> GradientExchange::create(std::shared_ptr<TensorGroup> group, Tensors parameters,
                                                           const std::vector<std::vector<size_t>>& members,
                                                           std::vector<std::string> names, GradientOptions options,
                                                           GradientCallbacks callbacks) {
  const std::shared_ptr<GradientExchange> made(new GradientExchange);
  made->group_ = std::move(group);
  made->options_ = options;
  made->callbacks_ = std::move(callbacks);
  for (at::Tensor& tensor : parameters) made->parameters_.push_back({.tensor = std::move(tensor)});
  for (size_t i = 0; i < members.size(); ++i) {
    made->groups_.push_back({.name = std::move(names.at(i)), .members = members[i]});
    for (const size_t each : members[i]) made->parameters_.at(each).group = i;
  }
  made->reset();
  for (size_t i = 0; i < made->parameters_.size(); ++i) {
    if (made->parameters_[i].tensor.requires_grad()) made->hook(i);
  }
  return made;
}

void GradientExchange::hook(size_t at) {
  using torch::autograd::utils::LambdaPostHook;
  Parameter& parameter = parameters_[at];
  parameter.accumulator = torch::autograd::impl::grad_accumulator(parameter.tensor);
  // Use a weak reference, because a backward may still run when the exchange is destroyed.
  auto hook = std::make_unique<LambdaPostHook>([weak = weak_from_this(), at](const auto& outputs, const auto&) {
    if (const auto exchange = weak.lock()) exchange->accumulated(at);
    return outputs;
  });
  parameter.accumulator->add_post_hook(std::move(hook));
}

void GradientExchange::setPasses(int numPasses) {
  const std::lock_guard lock(mutex_);
  options_.numPasses = numPasses;
  for (Parameter& parameter : parameters_) parameter.numLeft = numPasses;
  for (Group& group : groups_) {
    if (!group.isStarted) group.numMissing = group.members.size();
  }
}

bool GradientExchange::isUnderWay() {
  const std::lock_guard lock(mutex_);
  return numStarted_ > 0;
}

void GradientExchange::accumulated(size_t at) {
  std::unique_lock lock(mutex_);
  Parameter& parameter = parameters_[at];
  Group& group = groups_[parameter.group];
  if (parameter.numLeft <= 0 || group.isStarted) {
    lock.unlock();
    return callbacks_.refuse(at);
  }
  if (--parameter.numLeft > 0 || --group.numMissing > 0) return;
  if (numStarted_ == 0 && !isOutdated_) {
    lock.unlock();
    const bool isCurrent = callbacks_.isCurrent();
    lock.lock();
    isOutdated_ = !isCurrent;
  }
  if (isOutdated_) return;
  start(parameter.group, lock);
  startTogether();
}

void GradientExchange::startMissing() {
  std::unique_lock lock(mutex_);
  try {
    for (size_t i = 0; i < groups_.size(); ++i) {
      if (!groups_[i].isStarted && !groups_[i].members.empty()) start(i, lock);
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    startTogether();
    throw;
  }
  startTogether();
}

void GradientExchange::startTogether() {
  attempt([&] { group_->startAll(together_); });
  together_.clear();
}

template <typename Action>
void GradientExchange::attempt(Action action) {
  try {
    action();
  } catch (...) {
    if (failure_ == nullptr) failure_ = std::current_exception();
  }
}

void GradientExchange::start(size_t at, std::unique_lock<std::mutex>& lock) {
  Group& group = groups_[at];
  const at::NoGradGuard noGrad;
  bool requiresGradient = false;
  for (const size_t each : group.members) {
    Parameter& parameter = parameters_[each];
    if (!parameter.tensor.requires_grad()) continue;
    requiresGradient = true;
    if (parameter.accumulator == nullptr) hook(each);  // the parameter did not require a gradient before
    if (parameter.tensor.grad().defined()) continue;
    group.isMade = true;
    parameter.tensor.mutable_grad() =
        group.form.has_value() ? emptySparse(parameter.tensor, *group.form) : at::zeros_like(parameter.tensor);
  }
  if (!requiresGradient) return;
  group.isStarted = true;
  ++numStarted_;
  if (isSparse(group)) return attempt([&] { gather(at); });
  findGradients(group);
  if (gradients_.empty()) {
    startTogether();  // before operations that the callback starts
    lock.unlock();
    callbacks_.start(at);
    return lock.lock();
  }
  attempt([&] {
    if (PersistentReduction::canBind(gradients_)) {
      if (group.reduction == nullptr) group.reduction = group_->prepare(requestOf(at));
      group_->bind(*group.reduction, gradients_, gradients_);
      group.isReduced = true;
      together_.push_back(group.reduction.get());
    } else {
      group.sent = gradients_;
      group.work = group_->start(requestOf(at), gradients_, gradients_);
    }
  });
  gradients_.clear();
}

bool GradientExchange::isSparse(const Group& group) const {
  if (options_.isOther || options_.isSparseDense || group.members.size() != 1) return false;
  return parameters_[group.members[0]].tensor.grad().layout() == at::kSparse;
}

void GradientExchange::gather(size_t at) {
  Group& group = groups_[at];
  const at::Tensor& gradient = parameters_[group.members[0]].tensor.grad();
  TORCH_CHECK_VALUE(options_.reduction == NamedReduction::kAverage || options_.reduction == NamedReduction::kSum,
                    "sparse gradients, as that of '", group.name,
                    "', can only be summed up: use op=hvd.Average or op=hvd.Sum.");
  TORCH_CHECK_VALUE(isReduced(gradient.scalar_type()), "Tensor type ", gradient.toString(), " is not supported.");
  group.form = formOf(gradient);
  group.work = group_->start(requestOf(at, NamedKind::kAllGather), {rowsOf(gradient)}, {});
  group.isGathered = true;
}

Request GradientExchange::requestOf(size_t at, NamedKind kind) const {
  Request request;
  request.kind = kind;
  request.name = groups_[at].name;
  request.reduction = options_.reduction;
  request.prescale = options_.prescale;
  request.postscale = options_.postscale;
  request.isCacheable = true;
  request.priority = -static_cast<int32_t>(at);
  return request;
}

void GradientExchange::findGradients(const Group& group) {
  gradients_.clear();
  if (options_.isOther) return;
  for (const size_t each : group.members) {
    const at::Tensor& gradient = parameters_[each].tensor.grad();
    if (!gradient.defined()) continue;  // the parameter is frozen
    const bool isDense = gradient.layout() == at::kStrided;
    if (!isDense || (!gradients_.empty() && gradient.scalar_type() != gradients_[0].scalar_type())) {
      return gradients_.clear();
    }
    const bool isConverted = options_.isHalf && gradient.is_floating_point();
    gradients_.push_back((isConverted ? gradient.to(at::kHalf) : gradient).contiguous());
  }
}

void GradientExchange::finish(Group& group) {
  if (group.isGathered) {
    at::Tensor& gradient = parameters_[group.members[0]].tensor.mutable_grad();
    const double divisor = options_.reduction == NamedReduction::kAverage ? group_->size() : 1;
    gradient = sumOf(group.work->wait()[0], gradient.sizes(), *group.form, divisor);
    return;
  }
  if (group.isReduced) {
    group.reduction->wait();
  } else {
    group.work->wait();
  }
  const PersistentReduction::Tensors sent = group.isReduced ? group.reduction->outputs() : group.sent;
  size_t at = 0;
  for (const size_t each : group.members) {
    const at::Tensor& gradient = parameters_[each].tensor.grad();
    if (!gradient.defined()) continue;
    const at::Tensor& reduced = sent[at++];
    if (!reduced.is_same(gradient)) parameters_[each].tensor.mutable_grad().copy_(reduced);
  }
}

bool GradientExchange::needsLayoutAgreement(const Group& group) const {
  if (options_.isOther || group.members.size() != 1) return false;
  return group.isReduced ? group.reduction->operation()->areKindsDifferent() : group.work->areKindsDifferent();
}

void GradientExchange::agreeOnLayout(size_t at) {
  Group& group = groups_[at];
  at::Tensor& gradient = parameters_[group.members[0]].tensor.mutable_grad();
  const bool isOwnSparse = gradient.layout() == at::kSparse;
  const RowForm own = isOwnSparse ? formOf(gradient) : RowForm();
  const bool isOwnDense = !isOwnSparse && !group.isMade;
  // After the maximum over all ranks, the first value is 1 if a rank has a dense gradient. The others are the form of
  // the sparse gradients.
  const at::Tensor agreed =
      at::tensor({int64_t{isOwnDense}, own.numIndices, static_cast<int64_t>(own.type)}, at::TensorOptions(at::kLong));
  Request request;
  request.kind = NamedKind::kAllReduce;
  request.reduction = NamedReduction::kMax;
  request.name = group.name + ".layout";
  group_->start(std::move(request), {agreed}, {agreed})->wait();
  const auto* const values = agreed.const_data_ptr<int64_t>();
  if (std::exchange(group.isReduced, false)) group.reduction->dropTensors();
  group.isGathered = false;
  if (values[0] == 0) {
    if (!isOwnSparse) gradient = emptySparse(gradient, {values[1], static_cast<at::ScalarType>(values[2])});
    gather(at);
  } else {
    if (isOwnSparse) gradient = gradient.to_dense();
    group.sent = {gradient.contiguous()};
    group.work = group_->start(requestOf(at), group.sent, group.sent);
  }
  finish(group);
}

void GradientExchange::wait() {
  const at::NoGradGuard noGrad;
  std::exception_ptr failure;
  std::vector<size_t> started, differing;
  {
    const std::lock_guard lock(mutex_);
    failure = std::exchange(failure_, nullptr);
    for (size_t i = 0; i < groups_.size(); ++i) {
      if (groups_[i].work != nullptr || groups_[i].isReduced) started.push_back(i);
    }
  }
  for (const size_t at : started) {
    if (failure != nullptr) break;
    try {
      finish(groups_[at]);
    } catch (...) {
      if (needsLayoutAgreement(groups_[at])) {
        differing.push_back(at);
      } else {
        failure = std::current_exception();
      }
    }
  }
  for (const size_t at : differing) {
    if (failure != nullptr) break;
    try {
      agreeOnLayout(at);
    } catch (...) {
      failure = std::current_exception();
    }
  }
  const std::lock_guard lock(mutex_);
  reset();
  if (failure != nullptr) std::rethrow_exception(failure);
}

void GradientExchange::reset() {
  numStarted_ = 0;
  isOutdated_ = false;
  failure_ = nullptr;
  for (Parameter& parameter : parameters_) parameter.numLeft = options_.numPasses;
  for (Group& group : groups_) {
    group.numMissing = group.members.size();
    group.isStarted = group.isGathered = group.isMade = false;
    group.work = nullptr;
    group.sent.clear();
    if (!std::exchange(group.isReduced, false)) continue;
    if (group.reduction->operation()->isDone()) {
      group.reduction->dropTensors();
    } else {
      group.reduction = nullptr;  // the destructor keeps tensors and world until the operation has ended
    }
  }
}

}  // namespace agspeed::comm::horovod
