// SPDX-License-Identifier: Apache-2.0
#include "runtime/autograd/program_code.h"

#include <string>
#include <utility>

#include "runtime/base/format.h"

namespace agspeed::runtime::autograd {
namespace {

using aten::AtenExecutable;

Status contradiction(const std::string& what, size_t said, size_t found) {
  return invalidArgument("the signature says {} {}, the entries have {}", said, what, found);
}

class ProgramRun final : public BackwardRun {
 public:
  ProgramRun(const aten::AtenEntry& entry, size_t firstTangent) : run_(entry), firstTangent_(firstTangent) {}

  StatusOr<std::vector<aten::Argument>> resume(std::vector<aten::Argument> inputs) override {
    if (isStarted_) return run_.resume();
    isStarted_ = true;
    return run_.start(std::move(inputs), firstTangent_);
  }

 private:
  aten::AtenRun run_;
  const size_t firstTangent_;
  bool isStarted_ = false;
};

}  // namespace

ProgramCode::ProgramCode(std::shared_ptr<const AtenExecutable> executable)
    : executable_(std::move(executable)),
      forward_(executable_->entry("forward")),
      backward_(executable_->entry("backward")) {}

StatusOr<std::unique_ptr<const RegionCode>> ProgramCode::create(std::shared_ptr<const AtenExecutable> executable) {
  if (executable->entry("forward") == nullptr) return invalidArgument("a Region needs an entry \"forward\"");
  return std::unique_ptr<const RegionCode>(new ProgramCode(std::move(executable)));
}

Status ProgramCode::check(const RegionSignature& signature) const {
  AG_RETURN_IF_ERROR(checkCounts(signature));
  AG_RETURN_IF_ERROR(checkStages(signature));
  for (int32_t input : signature.mutatedInputs) {
    if (forward_->isScalarInput(input)) {
      return invalidArgument("mutated_inputs names input {}, which is not a tensor", input);
    }
  }
  return checkAliases(signature);
}

Status ProgramCode::checkCounts(const RegionSignature& signature) const {
  const Program& forward = forward_->program();
  const size_t numInputs = forward.inputs.size();
  if (signature.requiresGrad.size() != numInputs) {
    return contradiction("inputs", signature.requiresGrad.size(), numInputs);
  }
  if (signature.numForwardOutputs() != forward.outputs.size()) {
    return contradiction("forward outputs", signature.numForwardOutputs(), forward.outputs.size());
  }
  if (signature.tangents.empty()) return {};
  if (backward_ == nullptr) return invalidArgument("the signature has tangents but there is no backward entry");
  const Program& backward = backward_->program();
  if (signature.numBackwardInputs() != backward.inputs.size()) {
    return contradiction("backward inputs", signature.numBackwardInputs(), backward.inputs.size());
  }
  if (backward.outputs.size() != numInputs) return contradiction("gradients", numInputs, backward.outputs.size());
  return {};
}

Status ProgramCode::checkStages(const RegionSignature& signature) const {
  if (!signature.savedStages.empty()) return invalidArgument("a Program takes all saved tensors in stage 0");
  if (backward_ == nullptr || signature.tangents.empty()) return {};
  if (signature.numStages() != backward_->numStages()) {
    return contradiction("stages", signature.numStages(), backward_->numStages());
  }
  if (signature.gradientStages.empty() || signature.gradientStages == backward_->stages) return {};
  return invalidArgument("gradient_stages differ from those of the backward entry");
}

Status ProgramCode::checkAliases(const RegionSignature& signature) const {
  const size_t first = signature.firstOutput();
  for (size_t i = 0; i < signature.numOutputs; ++i) {
    const std::string which = formatText("output {}", i);
    if (signature.outputViews[i] != -1 && forward_->inputAliasedByOutput(first + i) != signature.outputViews[i]) {
      return unsupported(which + " is not computed as a view of the input it is said to view");
    }
    if (signature.isMadeFromInput(i)) continue;
    if (forward_->inputAliasedByOutput(first + i) != -1) return unsupported(which + " is a view of an input");
    for (size_t k = 0; k < i; ++k) {
      if (!signature.isMadeFromInput(k) && forward_->shareMemory(first + i, first + k)) {
        return unsupported("{} shares memory with output {}", which, k);
      }
    }
  }
  return {};
}

// Accepts plain tensors. Programs were not compiled for others (Python, functorch, sparse, conjugate, ...). On a GPU
// numbers may come from the CPU.
c10::DispatchKeySet ProgramCode::acceptedKeys() const {
  c10::DispatchKeySet plain(c10::DispatchKey::CPU);
  if (!forward_->program().device.isHost()) plain = plain.add(c10::DispatchKey::CUDA);
  return plain | c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
}

std::optional<std::vector<SavedView>> ProgramCode::savedViews(const RegionSignature& signature) const {
  std::vector<SavedView> views;
  for (size_t k = signature.firstSavedTensor(); k < signature.firstSavedSymint(); ++k) {
    const int32_t input = forward_->inputAliasedByOutput(k);
    if (input != -1) {
      if (input != forward_->inputOfOutput(k)) views.push_back({k, input, 0});
      continue;
    }
    for (size_t output = signature.firstOutput(); output < signature.firstSavedTensor(); ++output) {
      if (!forward_->shareMemory(k, output) || forward_->sameValue(k, output)) continue;
      views.push_back({k, -1, output});
      break;
    }
  }
  return views;
}

StatusOr<std::vector<RegionCode::Argument>> ProgramCode::forward(const std::vector<Argument>& inputs) const {
  return AtenExecutable::run(*forward_, inputs);
}

std::unique_ptr<BackwardRun> ProgramCode::beginBackward(const RegionSignature& signature) const {
  return std::make_unique<ProgramRun>(*backward_, signature.numSavedSymints + signature.numSavedTensors);
}

}  // namespace agspeed::runtime::autograd
