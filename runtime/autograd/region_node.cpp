// SPDX-License-Identifier: Apache-2.0
#include "python/csrc/region_node.h"

#include <c10/core/GradMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "python/csrc/python_arguments.h"
#include "runtime/aten/random_state.h"

namespace agspeed::python {
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
  if (signature.replay == nullptr) return;
  node->randomState_ = randomState;
  node->kept_.reserve(inputs.size());
  for (const Argument& input : inputs) node->keepInput(input);
}

void RegionNode::keepInput(const Argument& input) {
  KeptInput kept;
  if (const auto* integer = std::get_if<int64_t>(&input)) kept.integer = *integer;
  if (const at::Tensor* tensor = tensorOf(input)) {
    if (tensor->is_leaf()) {
      kept.leaf = *tensor;
      kept.version = tensor->is_inference() ? 0 : tensor->_version();
    } else {
      kept.derived = std::make_unique<Derived>(Derived{SavedVariable(*tensor, /*is_output=*/true), tensor->grad_fn()});
    }
  }
  kept_.push_back(std::move(kept));
}

at::Tensor RegionNode::unpackInput(const KeptInput& input) const {
  if (input.derived != nullptr) return input.derived->saved.unpack(input.derived->history);
  if (!input.leaf.defined() || input.leaf.is_inference()) return input.leaf;
  TORCH_CHECK(
      input.leaf._version() == input.version,
      "one of the variables needed for gradient computation has been modified by an inplace operation: an input "
      "of region ",
      region_->signature().name, " is at version ", input.leaf._version(), "; expected version ", input.version,
      " instead.");
  return input.leaf;
}

variable_list RegionNode::apply(variable_list&& tangents) {
  std::lock_guard lock(mutex_);
  return needsReplay(tangents) ? replay(std::move(tangents)) : runBackward(std::move(tangents));
}

// The saved tensors for one run of the backward direction. In its last run (the graph is not retained) the node lets go
// of them, so that the code may free each after its last use. In any other, and where hooks may know the tensor, the
// code gets copies of those that it overwrites.
std::vector<at::Tensor> RegionNode::takeSaved() {
  const bool isLastRun = !torch::autograd::get_current_graph_task_keep_graph();
  const std::shared_ptr<Node> self = getptr();
  std::vector<at::Tensor> tensors;
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
  const std::vector<std::vector<int64_t>>& layouts = region_->signature().tangentLayouts;
  for (size_t i = 0; i < tangents.size(); ++i) {
    at::Tensor tangent = tangents[i].defined() ? std::move(tangents[i]) : input_metadata(i).zeros_like();
    inputs.emplace_back(layouts.empty() ? std::move(tangent) : layOut(tangent, layouts[i]));
  }
  tangents.clear();
  auto results = region_->code().backward(std::move(inputs), firstTangent);
  TORCH_CHECK(results.isOk(), results.status().message(), " (in the backward of region ", region_->signature().name,
              ")");
  TORCH_CHECK(results->size() == region_->signature().requiresGrad.size(), "the backward direction of region ",
              region_->signature().name, " returned ", results->size(), " gradients instead of ",
              region_->signature().requiresGrad.size());
  variable_list gradients(differentiated_.size());
  for (size_t i = 0; i < differentiated_.size(); ++i) {
    if (!isReached[differentiated_[i]]) continue;
    if (auto* gradient = std::get_if<at::Tensor>(&(*results)[differentiated_[i]])) gradients[i] = std::move(*gradient);
  }
  return gradients;
}

pybind11::tuple RegionNode::replayArguments(const variable_list& inputs) const {
  auto arguments = pybind11::reinterpret_steal<pybind11::tuple>(PyTuple_New(static_cast<Py_ssize_t>(inputs.size())));
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::optional<int64_t>& integer = kept_[i].integer;
    PyObject* value = wrapArgument(integer ? Argument(*integer) : Argument(inputs[i]));
    if (value == nullptr) throwPythonError();
    PyTuple_SET_ITEM(arguments.ptr(), static_cast<Py_ssize_t>(i), value);
  }
  return arguments;
}

// The user outputs, computed by Python on these inputs with the random numbers of the forward.
variable_list RegionNode::callReplay(const variable_list& inputs) const {
  const RandomStateScope sameNumbers(randomState_);
  pybind11::gil_scoped_acquire gil;
  const pybind11::tuple arguments = replayArguments(inputs);
  const auto result =
      pybind11::reinterpret_steal<pybind11::object>(PyObject_CallObject(region_->signature().replay, arguments.ptr()));
  if (!result) throwPythonError();
  const auto items =
      pybind11::reinterpret_steal<pybind11::object>(PySequence_Fast(result.ptr(), "replay must return a sequence"));
  if (!items) throwPythonError();
  const auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(items.ptr()));
  TORCH_CHECK(count == region_->signature().numOutputs, "replay of region ", region_->signature().name, " returned ",
              count, " outputs instead of ", region_->signature().numOutputs);
  variable_list outputs;
  for (int32_t output : region_->signature().tangents) {
    PyObject* item = PySequence_Fast_GET_ITEM(items.ptr(), output);
    TORCH_CHECK(THPVariable_Check(item), "replay returned no tensor for output ", output);
    outputs.push_back(THPVariable_Unpack(item));
  }
  return outputs;
}

variable_list RegionNode::replay(variable_list&& tangents) {
  const bool createGraph = c10::GradMode::is_enabled();
  TORCH_CHECK(!released_, ERR_BACKWARD_TWICE);
  TORCH_CHECK(!kept_.empty(), "region ", region_->signature().name,
              " was compiled without a way to differentiate its backward (create_graph, batched gradients): switch "
              "agspeed off around this call with agspeed.paused()");
  variable_list inputs;
  for (const KeptInput& kept : kept_) inputs.push_back(unpackInput(kept));
  at::AutoGradMode withHistory(true);
  const variable_list outputs = callReplay(inputs);
  variable_list reached;
  variable_list gradients;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!tangents[i].defined() || !outputs[i].requires_grad()) continue;
    reached.push_back(outputs[i]);
    gradients.push_back(tangents[i]);
  }
  if (reached.empty()) return variable_list(differentiated_.size());
  variable_list wanted;
  for (size_t i : differentiated_) wanted.push_back(inputs[i]);
  return torch::autograd::grad(reached, wanted, gradients, /*retain_graph=*/createGraph, createGraph,
                               /*allow_unused=*/true);
}

void RegionNode::release_variables() {
  std::lock_guard lock(mutex_);
  for (SavedVariable& saved : saved_) saved.reset_data();
  kept_.clear();
  randomState_.reset();
  released_ = true;
}

}  // namespace agspeed::python
