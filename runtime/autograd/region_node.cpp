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

// Whether this thread's state or these gradients rule out the compiled backward.
bool needsReplay(const variable_list& tangents) {
  return c10::GradMode::is_enabled() || c10::impl::TorchDispatchModeTLS::any_modes_set() ||
         !std::all_of(tangents.begin(), tangents.end(), isPlain);
}

// By input: false if eager leaves the gradient undefined, because all tangents that it depends on are undefined. An
// optimizer skips such a parameter; a gradient of zeros would let weight decay change it.
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

bool shareMemory(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.has_storage() && b.has_storage() && a.storage().is_alias_of(b.storage());
}

bool anyShareMemory(const variable_list& some, const variable_list& others) {
  return std::any_of(some.begin(), some.end(), [&](const at::Tensor& one) {
    return std::any_of(others.begin(), others.end(), [&](const at::Tensor& other) { return shareMemory(one, other); });
  });
}

}  // namespace

at::Tensor snapshot(const at::Tensor& tensor) {
  at::AutoGradMode noHistory(false);
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()).copy_(tensor);
}

std::vector<aten::NodePointer<RegionNode>> RegionNode::makeChain(const std::shared_ptr<const Region>& region,
                                                                 const std::vector<Argument>& inputs) {
  std::vector<aten::NodePointer<RegionNode>> nodes(region->stages().size());
  // From the last to the first, because a node's edges must be set before another node gets an edge to it.
  for (size_t number = nodes.size(); number-- > 0;) {
    nodes[number] = aten::makeNode<RegionNode>(region, number);
    const RegionStage& stage = region->stages()[number];
    torch::autograd::edge_list edges;
    edges.reserve(stage.differentiated.size() + 1);
    for (size_t position : stage.differentiated) {
      edges.push_back(torch::autograd::impl::gradient_edge(std::get<at::Tensor>(inputs[stage.gradients[position]])));
    }
    if (number + 1 < nodes.size()) edges.emplace_back(nodes[number + 1], 0);
    nodes[number]->set_next_edges(std::move(edges));
  }
  return nodes;
}

void RegionNode::record(std::shared_ptr<const Region> region, const std::vector<Argument>& inputs,
                        std::vector<Argument>& results, const aten::RandomState& randomState) {
  const RegionSignature& signature = region->signature();
  const std::vector<aten::NodePointer<RegionNode>> nodes = makeChain(region, inputs);
  for (int32_t output : signature.tangents) {
    torch::autograd::create_gradient_edge(std::get<at::Tensor>(results[signature.firstOutput() + output]), nodes[0]);
  }
  for (size_t number = 1; number < nodes.size(); ++number) {
    const at::TensorOptions& options = nodes[0]->input_metadata(0).options();
    nodes[number]->add_input_metadata(options, c10::SymInt(0), false, false, std::nullopt);
  }
  // Saved after the outputs have their history, so that a saved output makes no cycle.
  for (const aten::NodePointer<RegionNode>& node : nodes) {
    for (size_t saved : node->stage().saved) {
      const at::Tensor& tensor = std::get<at::Tensor>(results[signature.firstSavedTensor() + saved]);
      node->saved_.emplace_back(tensor, /*is_output=*/tensor.grad_fn() == nodes[0]);
    }
  }
  for (size_t k = signature.firstSavedSymint(); k < signature.numForwardOutputs(); ++k) {
    nodes[0]->symints_.push_back(std::get<int64_t>(results[k]));
  }
  if (region->eager() != nullptr) nodes[0]->replay_ = std::make_shared<const Replay>(inputs, randomState);
}

std::string RegionNode::name() const {
  const std::string first = "AgspeedRegionBackward";
  return number_ == 0 ? first : first + "Stage" + std::to_string(number_);
}

variable_list RegionNode::apply(variable_list&& inputs) {
  std::lock_guard lock(mutex_);
  return number_ == 0 ? applyFirst(std::move(inputs)) : applyLater(std::move(inputs[0]));
}

variable_list RegionNode::applyFirst(variable_list&& tangents) {
  auto run = std::make_unique<StagedRun>();
  run->region = region_;
  variable_list outputs;
  if (needsReplay(tangents)) {
    run->replayed = differentiateEagerly(replay_.get(), tangents);
    outputs = takeReplayed(*run);
  } else {
    run->isReached = reachedInputs(region_->signature(), tangents);
    run->code = region_->code().beginBackward(region_->signature());
    if (replay_ != nullptr && region_->code().isReplaceable()) {
      run->replay = replay_;
      run->tangents = tangents;
    }
    std::vector<Argument> inputs(symints_.begin(), symints_.end());
    for (Argument& saved : takeSaved()) inputs.push_back(std::move(saved));
    appendTangents(std::move(tangents), inputs);
    outputs = compute(*run, std::move(inputs));
  }
  if (!isLast()) outputs.push_back(makeToken(std::move(run), input_metadata(0).options()));
  return outputs;
}

variable_list RegionNode::applyLater(at::Tensor token) {
  StagedRun& run = runOf(token);
  variable_list outputs = run.replayed ? takeReplayed(run) : compute(run, takeSaved());
  if (!isLast()) outputs.push_back(std::move(token));
  return outputs;
}

// The saved tensors of this stage for one run. In the last run (the graph is not retained) the node releases them, so
// that the code may free each after its last use. The code gets copies of tensors that it overwrites in all other runs,
// and if a tensor has hooks.
std::vector<RegionNode::Argument> RegionNode::takeSaved() {
  const bool isLastRun = !torch::autograd::get_current_graph_task_keep_graph();
  const aten::NodePointer<Node> self = getptr();
  std::vector<Argument> tensors;
  tensors.reserve(saved_.size());
  for (const SavedVariable& saved : saved_) tensors.emplace_back(saved.unpack(self));
  for (size_t position : stage().overwritten) {
    if (isLastRun && !saved_[position].has_hooks()) continue;
    tensors[position] = snapshot(std::get<at::Tensor>(tensors[position]));
  }
  if (isLastRun) {
    for (SavedVariable& saved : saved_) saved.reset_data();
  }
  return tensors;
}

void RegionNode::appendTangents(variable_list&& tangents, std::vector<Argument>& inputs) const {
  const std::vector<std::vector<int64_t>>& layouts = region_->signature().tangentLayouts;
  for (size_t i = 0; i < tangents.size(); ++i) {
    at::Tensor tangent = tangents[i].defined() ? std::move(tangents[i]) : input_metadata(i).zeros_like();
    inputs.emplace_back(layouts.empty() ? std::move(tangent) : layOut(tangent, layouts[i]));
  }
  tangents.clear();
}

variable_list RegionNode::compute(StagedRun& run, std::vector<Argument> inputs) const {
  std::vector<Argument> results;
  try {
    results = resume(run, std::move(inputs));
  } catch (const std::exception& error) {
    if (run.replay == nullptr || !region_->eager()->mayReplace(error)) throw;
    try {
      run.replayed = differentiateEagerly(run.replay.get(), run.tangents);
      run.code.reset();
      return takeReplayed(run);
    } catch (const std::exception&) {
      // Eager failed too; the compiled code's exception below says more.
    }
    throw;
  }
  variable_list gradients;
  gradients.reserve(stage().differentiated.size() + 1);
  for (size_t position : stage().differentiated) {
    auto* gradient = std::get_if<at::Tensor>(&results[position]);
    const bool isWanted = gradient != nullptr && run.isReached[stage().gradients[position]];
    gradients.push_back(isWanted ? std::move(*gradient) : at::Tensor());
  }
  if (run.replay != nullptr && !isLast() && anyShareMemory(gradients, run.tangents)) {
    run.replay.reset();  // a receiver of these gradients may change the tangents
    run.tangents.clear();
  }
  return gradients;
}

std::vector<RegionNode::Argument> RegionNode::resume(StagedRun& run, std::vector<Argument> inputs) const {
  auto results = run.code->resume(std::move(inputs));
  if (!results.hasValue() && region_->eager() != nullptr) region_->eager()->codeFailed(results.status().message());
  TORCH_CHECK(results.hasValue(), results.status().message(), " (in the backward of region ", region_->signature().name,
              "; the gradients of this step are incomplete)");
  TORCH_CHECK(results->size() == stage().gradients.size(), "the backward direction of region ",
              region_->signature().name, " returned ", results->size(), " gradients instead of ",
              stage().gradients.size());
  return std::move(results).value();
}

// Returns the gradients by forward input.
variable_list RegionNode::differentiateEagerly(const Replay* replay, const variable_list& tangents) const {
  TORCH_CHECK(!released_, ERR_BACKWARD_TWICE);
  TORCH_CHECK(replay != nullptr, "region ", region_->signature().name,
              " was compiled without a way to differentiate its backward (create_graph, batched gradients): switch "
              "agspeed off around this call with agspeed.paused()");
  std::vector<size_t> wanted;
  const std::vector<bool>& requiresGrad = region_->signature().requiresGrad;
  for (size_t i = 0; i < requiresGrad.size(); ++i) {
    if (requiresGrad[i]) wanted.push_back(i);
  }
  variable_list found = replay->differentiate(*region_, wanted, tangents);
  variable_list byInput(requiresGrad.size());
  for (size_t i = 0; i < wanted.size(); ++i) byInput[wanted[i]] = std::move(found[i]);
  return byInput;
}

variable_list RegionNode::takeReplayed(StagedRun& run) const {
  variable_list gradients;
  for (size_t position : stage().differentiated) {
    gradients.push_back(std::move((*run.replayed)[stage().gradients[position]]));
  }
  return gradients;
}

void RegionNode::release_variables() {
  std::lock_guard lock(mutex_);
  for (SavedVariable& saved : saved_) saved.reset_data();
  replay_.reset();
  released_ = true;
}

}  // namespace agspeed::runtime::autograd
