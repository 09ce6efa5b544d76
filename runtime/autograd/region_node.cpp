// SPDX-License-Identifier: Apache-2.0
#include "runtime/autograd/region_node.h"

#include <c10/core/GradMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace agspeed::runtime::autograd {
namespace {

using torch::autograd::ERR_BACKWARD_TWICE;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

bool isPlain(const at::Tensor& tensor) {
  return !tensor.defined() || !tensor.key_set().has_any(c10::python_ks | c10::functorch_transforms_ks);
}

// Whether this thread and these gradients allow the compiled backward.
bool needsReplay(const variable_list& tangents) {
  return c10::GradMode::is_enabled() || c10::impl::TorchDispatchModeTLS::any_modes_set() ||
         !std::all_of(tangents.begin(), tangents.end(), isPlain);
}

// By input: false where eager leaves the gradient undefined, because nothing that it is computed from is defined. An
// optimizer skips such a parameter; a gradient of zeros would make it decay.
std::vector<bool> reachedInputs(const RegionSignature& signature, const variable_list& tangents) {
  std::vector<bool> isReached(signature.requiresGrad.size(), true);
  for (size_t i = 0; i < signature.gradientSources.size(); ++i) {
    const std::vector<int32_t>& sources = signature.gradientSources[i];
    auto isDefined = [&](int32_t tangent) { return tangents[tangent].defined(); };
    isReached[i] = sources.empty() || std::any_of(sources.begin(), sources.end(), isDefined);
  }
  return isReached;
}

// A gradient in the memory layout that the backward direction was traced with: `dims` from the outermost to the
// innermost.
at::Tensor layOut(const at::Tensor& gradient, const std::vector<int64_t>& dims) {
  if (std::is_sorted(dims.begin(), dims.end())) return gradient.contiguous();
  std::vector<int64_t> inverse(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) inverse[dims[i]] = static_cast<int64_t>(i);
  return gradient.permute(dims).contiguous().permute(inverse);
}

const at::Tensor* tensorOf(const Region::Argument& argument) { return std::get_if<at::Tensor>(&argument); }

}  // namespace

at::Tensor snapshot(const at::Tensor& tensor) {
  at::AutoGradMode noHistory(false);
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()).copy_(tensor);
}

void RegionNode::record(std::shared_ptr<const Region> region, const std::vector<Argument>& inputs,
                        std::vector<Argument>& results, const at::Tensor& randomState) {
  const RegionSignature& signature = region->signature();
  std::shared_ptr<RegionNode> node(new RegionNode(std::move(region)), torch::autograd::deleteNode);
  torch::autograd::edge_list edges;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor* tensor = tensorOf(inputs[i]);
    if (tensor == nullptr || !signature.requiresGrad[i] || !tensor->requires_grad()) continue;
    edges.push_back(torch::autograd::impl::gradient_edge(*tensor));
    node->differentiated_.push_back(i);
  }
  node->set_next_edges(std::move(edges));
  for (int32_t output : signature.tangents) {
    torch::autograd::create_gradient_edge(std::get<at::Tensor>(results[signature.firstOutput() + output]), node);
  }
  // Saved after the outputs have their history: a saved output then makes no cycle.
  for (size_t k = signature.firstSavedTensor(); k < signature.firstSavedSymint(); ++k) {
    const at::Tensor& tensor = std::get<at::Tensor>(results[k]);
    node->saved_.emplace_back(tensor, /*is_output=*/tensor.grad_fn() == node);
  }
  for (size_t k = signature.firstSavedSymint(); k < signature.numForwardOutputs(); ++k) {
    node->symints_.push_back(std::get<int64_t>(results[k]));
  }
  if (node->region_->eager() != nullptr) node->replay_.emplace(inputs, randomState);
}

variable_list RegionNode::apply(variable_list&& tangents) {
  std::lock_guard lock(mutex_);
  return needsReplay(tangents) ? differentiateEagerly(tangents) : runBackward(std::move(tangents));
}

// The saved tensors for one run of the backward direction. In its last run (the graph is not retained) the node lets go
// of them, so that the code may free each after its last use. In any other, and where hooks may know the tensor, the
// code gets copies of those that it overwrites.
variable_list RegionNode::takeSaved() {
  const bool isLastRun = !torch::autograd::get_current_graph_task_keep_graph();
  const std::shared_ptr<Node> self = getptr();
  variable_list tensors;
  tensors.reserve(saved_.size());
  for (const SavedVariable& saved : saved_) tensors.push_back(saved.unpack(self));
  for (int32_t index : region_->signature().overwrittenSaved) {
    at::Tensor& tensor = tensors[index];
    if (isLastRun && !saved_[index].has_hooks()) continue;
    tensor = snapshot(tensor);
  }
  if (isLastRun) {
    for (SavedVariable& saved : saved_) saved.reset_data();
  }
  return tensors;
}

variable_list RegionNode::runBackward(variable_list&& tangents) {
  const std::vector<bool> isReached = reachedInputs(region_->signature(), tangents);
  std::vector<Argument> inputs(symints_.begin(), symints_.end());
  inputs.reserve(symints_.size() + saved_.size() + tangents.size());
  for (at::Tensor& tensor : takeSaved()) inputs.emplace_back(std::move(tensor));
  const size_t firstTangent = inputs.size();
  const bool mayReplay = replay_.has_value() && region_->code().isReplaceable();
  const variable_list spare = mayReplay ? tangents : variable_list();
  const std::vector<std::vector<int64_t>>& layouts = region_->signature().tangentLayouts;
  for (size_t i = 0; i < tangents.size(); ++i) {
    at::Tensor tangent = tangents[i].defined() ? std::move(tangents[i]) : input_metadata(i).zeros_like();
    inputs.emplace_back(layouts.empty() ? std::move(tangent) : layOut(tangent, layouts[i]));
  }
  tangents.clear();
  std::vector<Argument> results;
  try {
    results = callBackward(std::move(inputs), firstTangent);
  } catch (const std::exception& error) {
    if (!mayReplay || !region_->eager()->mayReplace(error)) throw;
    try {
      return differentiateEagerly(spare);
    } catch (const std::exception&) {
      // Eager cannot stand in: what the code threw says more.
    }
    throw;
  }
  variable_list gradients(differentiated_.size());
  for (size_t i = 0; i < differentiated_.size(); ++i) {
    if (!isReached[differentiated_[i]]) continue;
    if (auto* gradient = std::get_if<at::Tensor>(&results[differentiated_[i]])) gradients[i] = std::move(*gradient);
  }
  return gradients;
}

std::vector<RegionNode::Argument> RegionNode::callBackward(std::vector<Argument> inputs, size_t firstTangent) const {
  auto results = region_->code().backward(std::move(inputs), firstTangent);
  if (!results && region_->eager() != nullptr) region_->eager()->codeFailed(results.status().message());
  TORCH_CHECK(results.isOk(), results.status().message(), " (in the backward of region ", region_->signature().name,
              "; the gradients of this step are incomplete)");
  TORCH_CHECK(results->size() == region_->signature().requiresGrad.size(), "the backward direction of region ",
              region_->signature().name, " returned ", results->size(), " gradients instead of ",
              region_->signature().requiresGrad.size());
  return std::move(results).value();
}

variable_list RegionNode::differentiateEagerly(const variable_list& tangents) const {
  TORCH_CHECK(!released_, ERR_BACKWARD_TWICE);
  TORCH_CHECK(replay_.has_value(), "region ", region_->signature().name,
              " was compiled without a way to differentiate its backward (create_graph, batched gradients): switch "
              "agspeed off around this call with agspeed.paused()");
  return replay_->differentiate(*region_, differentiated_, tangents);
}

void RegionNode::release_variables() {
  std::lock_guard lock(mutex_);
  for (SavedVariable& saved : saved_) saved.reset_data();
  replay_.reset();
  released_ = true;
}

}  // namespace agspeed::runtime::autograd
