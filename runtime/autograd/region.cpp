// SPDX-License-Identifier: Apache-2.0
#include "runtime/autograd/region.h"

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "runtime/aten/random_state.h"
#include "runtime/autograd/region_node.h"

namespace agspeed::runtime::autograd {
namespace {

using Argument = Region::Argument;

// Whether both have the same dense layout in host memory, so that a mutation is a block copy.
bool sameDenseLayout(const at::Tensor& a, const at::Tensor& b) {
  return a.is_cpu() && a.strides() == b.strides() && a.scalar_type() == b.scalar_type() &&
         a.is_non_overlapping_and_dense();
}

// The device of the call: the first one that is not the CPU.
std::optional<c10::Device> deviceOf(const std::vector<Argument>& inputs) {
  for (const Argument& input : inputs) {
    const auto* tensor = std::get_if<at::Tensor>(&input);
    if (tensor != nullptr && tensor->defined() && !tensor->is_cpu()) return tensor->device();
  }
  return std::nullopt;
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

const c10::StorageImpl* storageOf(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

bool isAmong(const at::Tensor& tensor, const std::vector<Argument>& arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [&](const Argument& argument) {
    const auto* other = std::get_if<at::Tensor>(&argument);
    return other != nullptr && other->is_same(tensor);
  });
}

// A tensor with the same memory and version counter.
at::Tensor withoutHistory(const at::Tensor& tensor) {
  return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
      torch::autograd::impl::version_counter(tensor), /*allow_tensor_metadata_change=*/true));
}

std::vector<RegionStage> stagesOf(const RegionSignature& signature) {
  std::vector<RegionStage> stages(signature.numStages());
  for (size_t input = 0; input < signature.requiresGrad.size(); ++input) {
    RegionStage& stage = stages[signature.stageOfGradient(input)];
    if (signature.requiresGrad[input]) stage.differentiated.push_back(stage.gradients.size());
    stage.gradients.push_back(input);
  }
  const auto& overwritten = signature.overwrittenSaved;
  for (size_t saved = 0; saved < signature.numSavedTensors; ++saved) {
    RegionStage& stage = stages[signature.stageOfSaved(saved)];
    const bool mayWrite = std::find(overwritten.begin(), overwritten.end(), saved) != overwritten.end();
    if (mayWrite) stage.overwritten.push_back(stage.saved.size());
    stage.saved.push_back(saved);
  }
  return stages;
}

}  // namespace

Region::Region(std::unique_ptr<const RegionCode> code, RegionSignature signature,
               std::unique_ptr<const EagerFunction> eager)
    : code_(std::move(code)),
      signature_(std::move(signature)),
      eager_(std::move(eager)),
      refusedKeys_(~code_->acceptedKeys().raw_repr()),
      savedViews_(code_->savedViews(signature_)),
      stages_(stagesOf(signature_)) {}

StatusOr<std::shared_ptr<const Region>> Region::create(std::unique_ptr<const RegionCode> code,
                                                       RegionSignature signature,
                                                       std::unique_ptr<const EagerFunction> eager) {
  const std::string context = "region " + signature.name;
  AG_RETURN_IF_ERROR(verify(signature).withContext(context));
  AG_RETURN_IF_ERROR(code->check(signature).withContext(context));
  return std::shared_ptr<const Region>(new Region(std::move(code), std::move(signature), std::move(eager)));
}

// The reason to compute these inputs eagerly, or nullptr.
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
    if (!tensor->defined() || (tensor->key_set().raw_repr() & refusedKeys_) != 0)
      return "an input is not a plain tensor";
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

// The caller may change an output in place, so no output may be an input. (An operator may return its input although
// its schema promises a new tensor, for example dropout outside training.) Results must not be views for autograd
// either, as a direction makes them without history. They still share memory and version counter with their source.
void Region::separateResults(const std::vector<Argument>& inputs, std::vector<Argument>& results) const {
  at::AutoGradMode noHistory(false);
  for (size_t k = signature_.firstOutput(); k < signature_.firstSavedSymint(); ++k) {
    auto* result = std::get_if<at::Tensor>(&results[k]);
    const bool isOutput = k < signature_.firstSavedTensor();
    if (result == nullptr || (isOutput && signature_.isMadeFromInput(k - signature_.firstOutput()))) continue;
    if (isOutput && result->use_count() > 1 && isAmong(*result, inputs)) *result = result->clone();
    if (result->is_view()) *result = withoutHistory(*result);
  }
}

// The backward direction needs the old values of mutated inputs, so saved tensors in their memory are copied first.
void Region::snapshotMutated(const std::vector<Argument>& inputs, std::vector<Argument>& results) const {
  std::vector<const c10::StorageImpl*> storages;
  for (int32_t index : signature_.mutatedInputs) storages.push_back(storageOf(std::get<at::Tensor>(inputs[index])));
  std::sort(storages.begin(), storages.end());
  for (size_t k = signature_.firstSavedTensor(); k < signature_.firstSavedSymint(); ++k) {
    auto* saved = std::get_if<at::Tensor>(&results[k]);
    if (saved == nullptr || !std::binary_search(storages.begin(), storages.end(), storageOf(*saved))) continue;
    *saved = snapshot(*saved);
  }
}

void Region::applyMutations(const std::vector<Argument>& inputs, std::vector<Argument>& results) const {
  if (!signature_.mutatedInputs.empty()) snapshotMutated(inputs, results);
  for (size_t k = 0; k < signature_.mutatedInputs.size(); ++k) {
    applyMutation(std::get<at::Tensor>(inputs[signature_.mutatedInputs[k]]), std::get<at::Tensor>(results[k]));
  }
  for (int32_t index : signature_.mutatedByCode) {
    const at::Tensor& input = std::get<at::Tensor>(inputs[index]);
    if (!input.is_inference()) input.unsafeGetTensorImpl()->bump_version();
  }
}

// Runs under the caller's grad mode: these outputs have the history of the inputs they come from.
void Region::returnInputs(const std::vector<Argument>& inputs, std::vector<Argument>& results) const {
  for (size_t i = 0; i < signature_.numOutputs; ++i) {
    Argument& output = results[signature_.firstOutput() + i];
    if (signature_.outputsAsInputs[i] != -1) output = inputs[signature_.outputsAsInputs[i]];
    if (signature_.outputViews[i] == -1) continue;
    const at::Tensor& view = std::get<at::Tensor>(output);
    const at::Tensor& input = std::get<at::Tensor>(inputs[signature_.outputViews[i]]);
    output = input.as_strided_symint(view.sym_sizes(), view.sym_strides(), view.sym_storage_offset());
  }
}

// Saved tensors in the memory of an input or of a user output that is another tensor object.
std::vector<SavedView> Region::findSavedViews(const std::vector<Argument>& inputs,
                                              const std::vector<Argument>& results) const {
  struct Source {
    const c10::StorageImpl* storage;
    const at::Tensor* tensor;
    int32_t input;
    size_t output;
  };
  std::vector<Source> sources;
  const auto add = [&](const Argument& argument, int32_t input, size_t output) {
    const auto* tensor = std::get_if<at::Tensor>(&argument);
    if (tensor == nullptr || !tensor->defined() || storageOf(*tensor) == nullptr) return;
    sources.push_back({storageOf(*tensor), tensor, input, output});
  };
  for (size_t i = 0; i < inputs.size(); ++i) add(inputs[i], static_cast<int32_t>(i), 0);
  for (size_t k = signature_.firstOutput(); k < signature_.firstSavedTensor(); ++k) add(results[k], -1, k);
  const auto byStorage = [](const Source& a, const Source& b) { return std::less<>()(a.storage, b.storage); };
  std::stable_sort(sources.begin(), sources.end(), byStorage);

  std::vector<SavedView> views;
  for (size_t k = signature_.firstSavedTensor(); k < signature_.firstSavedSymint(); ++k) {
    const auto* saved = std::get_if<at::Tensor>(&results[k]);
    if (saved == nullptr || !saved->defined()) continue;
    const Source wanted{storageOf(*saved), nullptr, -1, 0};
    const auto [first, last] = std::equal_range(sources.begin(), sources.end(), wanted, byStorage);
    if (first == last || std::any_of(first, last, [&](const Source& s) { return s.tensor->is_same(*saved); })) continue;
    views.push_back({k, first->input, first->output});
  }
  return views;
}

// A saved view shares the version counter of its source, so that changes of the source are noticed.
void Region::shareVersions(const std::vector<Argument>& inputs, const std::vector<Argument>& results) const {
  std::vector<SavedView> found;
  if (!savedViews_) found = findSavedViews(inputs, results);
  for (const SavedView& view : savedViews_ ? *savedViews_ : found) {
    const auto* saved = std::get_if<at::Tensor>(&results[view.saved]);
    const auto* source = std::get_if<at::Tensor>(view.input != -1 ? &inputs[view.input] : &results[view.output]);
    if (saved == nullptr || source == nullptr || saved->is_inference() || source->is_inference()) continue;
    if (saved->is_same(*source) || !saved->storage().is_alias_of(source->storage())) continue;
    torch::autograd::impl::set_version_counter(*saved, torch::autograd::impl::version_counter(*source));
  }
}

// A failed forward restores the random state, so that the eager computation draws the same numbers.
StatusOr<std::vector<Argument>> Region::runForward(const std::vector<Argument>& inputs,
                                                   const aten::RandomState& randomState) const {
  const auto rewind = [&] { randomState.restore(); };
  try {
    StatusOr<std::vector<Argument>> results = code_->forward(inputs);
    if (!results.hasValue()) rewind();
    return results;
  } catch (...) {
    rewind();
    throw;
  }
}

StatusOr<std::vector<Argument>> Region::forward(const std::vector<Argument>& inputs) const {
  RECORD_FUNCTION("AgspeedRegionForward", c10::ArrayRef<const c10::IValue>());
  if (const char* reason = refusal(inputs)) return unsupported(reason);
  const aten::RandomState state =
      signature_.drawsRandomNumbers ? aten::RandomState::now(deviceOf(inputs)) : aten::RandomState();
  AG_ASSIGN_OR_RETURN(std::vector<Argument> results, runForward(inputs, state));
  TORCH_CHECK(results.size() == signature_.numForwardOutputs(), "the forward direction of region ", signature_.name,
              " returned ", results.size(), " results instead of ", signature_.numForwardOutputs());
  separateResults(inputs, results);
  applyMutations(inputs, results);
  returnInputs(inputs, results);
  if (needsNode(inputs)) {
    shareVersions(inputs, results);
    RegionNode::record(shared_from_this(), inputs, results, state);
  }
  results.erase(results.begin() + static_cast<ptrdiff_t>(signature_.firstSavedTensor()), results.end());
  results.erase(results.begin(), results.begin() + static_cast<ptrdiff_t>(signature_.firstOutput()));
  return results;
}

}  // namespace agspeed::runtime::autograd
