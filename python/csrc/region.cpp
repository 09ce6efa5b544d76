// SPDX-License-Identifier: Apache-2.0
#include "python/csrc/region.h"

#include <c10/core/GradMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <cstring>
#include <utility>

#include "python/csrc/region_node.h"

namespace agspeed::python {
namespace {

using Argument = Region::Argument;

// What a plain CPU tensor may carry; anything else (Python, functorch, sparse, conjugate, ...) is not plain.
constexpr c10::DispatchKeySet kPlainKeys = c10::DispatchKeySet(c10::DispatchKey::CPU) |
                                           c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                           c10::autocast_dispatch_keyset;

bool isPlain(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.key_set().raw_repr() & ~kPlainKeys.raw_repr()) == 0;
}

// Same dense layout on both sides: a mutation is then a block copy.
bool sameDenseLayout(const at::Tensor& a, const at::Tensor& b) {
  return a.strides() == b.strides() && a.scalar_type() == b.scalar_type() && a.is_non_overlapping_and_dense();
}

void applyMutation(const at::Tensor& input, const at::Tensor& value) {
  if (!sameDenseLayout(input, value) || input.is_inference()) {
    at::AutoGradMode noHistory(false);
    input.copy_(value);
    return;
  }
  std::memcpy(input.mutable_data_ptr(), value.const_data_ptr(), value.nbytes());
  input.unsafeGetTensorImpl()->bump_version();
}

void releaseCallables(const RegionSignature& signature) {
  if (signature.fallback == nullptr && signature.replay == nullptr) return;
  if (Py_IsInitialized() == 0) return;
  pybind11::gil_scoped_acquire gil;
  Py_XDECREF(signature.fallback);
  Py_XDECREF(signature.replay);
}

}  // namespace

Region::Region(std::shared_ptr<const runtime::aten::AtenExecutable> executable, RegionSignature signature)
    : executable_(std::move(executable)),
      signature_(std::move(signature)),
      forward_(executable_->entry("forward")),
      backward_(executable_->entry("backward")) {}

Region::~Region() { releaseCallables(signature_); }

StatusOr<std::shared_ptr<Region>> Region::create(std::shared_ptr<const runtime::aten::AtenExecutable> executable,
                                                 RegionSignature signature) {
  std::shared_ptr<Region> region(new Region(std::move(executable), std::move(signature)));
  if (region->forward_ == nullptr) return invalidArgument("a Region needs an entry \"forward\"");
  const std::string& name = region->signature_.name;
  AG_RETURN_IF_ERROR(region->checkCounts().withContext("region " + name));
  AG_RETURN_IF_ERROR(region->checkMutations().withContext("region " + name));
  AG_RETURN_IF_ERROR(region->checkAliases().withContext("region " + name));
  region->findVersionSources();
  return region;
}

const char* Region::refusal(const std::vector<Argument>& inputs) const {
  if (c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode)) {
    return "a functorch transform is active";
  }
  if (c10::impl::TorchDispatchModeTLS::any_modes_set()) return "a TorchDispatchMode is active";
  if (torch::autograd::ForwardADLevel::try_get_by_idx(0) != nullptr) return "forward-mode AD is active";
  const bool gradMode = c10::GradMode::is_enabled();
  if (inputs.size() != signature_.requiresGrad.size()) return "the number of inputs differs";
  bool someRequired = false;
  bool someMissing = false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto* tensor = std::get_if<at::Tensor>(&inputs[i]);
    if (tensor == nullptr) continue;
    if (!isPlain(*tensor)) return "an input is not a plain CPU tensor";
    if (!gradMode) continue;
    const bool required = tensor->requires_grad();
    if (required && !signature_.requiresGrad[i]) return "an input requires grad that did not when traced";
    someRequired |= required;
    someMissing |= signature_.requiresGrad[i] && !required;
  }
  if (someRequired && someMissing) return "an input does not require grad that did when traced";
  if (someRequired && signature_.tangents.empty()) return "gradients are wanted of a region without backward";
  return nullptr;
}

bool Region::needsNode(const std::vector<Argument>& inputs) const {
  if (!c10::GradMode::is_enabled() || signature_.tangents.empty()) return false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto* tensor = std::get_if<at::Tensor>(&inputs[i]);
    if (tensor != nullptr && signature_.requiresGrad[i] && tensor->requires_grad()) return true;
  }
  return false;
}

// An operator may return an input itself although its schema promises a new tensor (dropout when not training). The
// caller must not find its own tensor changed, so such an output is copied.
void Region::protectInputs(const std::vector<Argument>& inputs, std::vector<Argument>& results) const {
  for (size_t i = 0; i < signature_.numOutputs; ++i) {
    auto* output = std::get_if<at::Tensor>(&results[signature_.firstOutput() + i]);
    if (output == nullptr || signature_.outputsAsInputs[i] != -1 || output->use_count() == 1) continue;
    for (const Argument& input : inputs) {
      const auto* tensor = std::get_if<at::Tensor>(&input);
      if (tensor == nullptr || !tensor->is_same(*output)) continue;
      at::AutoGradMode noHistory(false);
      *output = output->clone();
      break;
    }
  }
}

void Region::findVersionSources() {
  for (size_t k = signature_.firstSavedTensor(); k < signature_.firstSavedSymint(); ++k) {
    const int32_t input = forward_->inputAliasedByOutput(k);
    if (input != -1) {
      if (input != forward_->inputOfOutput(k)) versionSources_.push_back({k, input, 0});
      continue;
    }
    for (size_t output = signature_.firstOutput(); output < signature_.firstSavedTensor(); ++output) {
      if (!forward_->shareMemory(k, output) || forward_->sameValue(k, output)) continue;
      versionSources_.push_back({k, -1, output});
      break;
    }
  }
}

// A saved view must notice when what it views is modified: they share the version counter.
void Region::shareVersions(const std::vector<Argument>& inputs, const std::vector<Argument>& results) const {
  for (const VersionSource& view : versionSources_) {
    const auto* saved = std::get_if<at::Tensor>(&results[view.saved]);
    const auto* source = std::get_if<at::Tensor>(view.input != -1 ? &inputs[view.input] : &results[view.output]);
    if (saved == nullptr || source == nullptr || saved->is_inference() || source->is_inference()) continue;
    if (saved->is_same(*source) || !saved->storage().is_alias_of(source->storage())) continue;
    torch::autograd::impl::set_version_counter(*saved, torch::autograd::impl::version_counter(*source));
  }
}

StatusOr<std::vector<Argument>> Region::forward(std::vector<Argument> inputs) const {
  AG_ASSIGN_OR_RETURN(std::vector<Argument> results, runtime::aten::AtenExecutable::run(*forward_, inputs));
  protectInputs(inputs, results);
  for (size_t k = 0; k < signature_.mutatedInputs.size(); ++k) {
    applyMutation(std::get<at::Tensor>(inputs[signature_.mutatedInputs[k]]), std::get<at::Tensor>(results[k]));
  }
  if (needsNode(inputs)) {
    shareVersions(inputs, results);
    RegionNode::record(shared_from_this(), inputs, results);
  }
  results.erase(results.begin() + static_cast<ptrdiff_t>(signature_.firstSavedTensor()), results.end());
  results.erase(results.begin(), results.begin() + static_cast<ptrdiff_t>(signature_.firstOutput()));
  return results;
}

}  // namespace agspeed::python
