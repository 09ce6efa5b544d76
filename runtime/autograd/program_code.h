// SPDX-License-Identifier: Apache-2.0
// ProgramCode: the entries "forward" and "backward" of an Executable as RegionCode.
//
// The forward entry's input declarations guard sizes, strides and dtypes. There is no backward entry if the signature
// has no tangents. The backward's stages end where gradients are ready in the Program, and run under one lease. All
// stages get the saved values at the start.
#pragma once

#include <memory>

#include "runtime/autograd/region_code.h"

namespace agspeed::runtime::autograd {

class ProgramCode final : public RegionCode {
 public:
  /// Errors: kInvalidArgument without an entry "forward".
  static StatusOr<std::unique_ptr<const RegionCode>> create(std::shared_ptr<const aten::AtenExecutable> executable);

  Status check(const RegionSignature& signature) const override;
  c10::DispatchKeySet acceptedKeys() const override;
  std::optional<std::vector<SavedView>> savedViews(const RegionSignature& signature) const override;
  StatusOr<std::vector<Argument>> forward(const std::vector<Argument>& inputs) const override;
  bool isReplaceable() const override { return false; }
  std::unique_ptr<BackwardRun> beginBackward(const RegionSignature& signature) const override;

 private:
  explicit ProgramCode(std::shared_ptr<const aten::AtenExecutable> executable);
  Status checkCounts(const RegionSignature& signature) const;
  Status checkStages(const RegionSignature& signature) const;
  Status checkAliases(const RegionSignature& signature) const;

  const std::shared_ptr<const aten::AtenExecutable> executable_;
  const aten::AtenEntry* const forward_;
  const aten::AtenEntry* const backward_;  ///< nullptr: none
};

}  // namespace agspeed::runtime::autograd
