// SPDX-License-Identifier: Apache-2.0
// ProgramCode: the entries "forward" and "backward" of an Executable as RegionCode. No Python, no GIL.
//
// Sizes, strides and dtypes are guarded by the forward entry's own input declarations. The backward entry is absent
// when the signature has no tangents.
#pragma once

#include <memory>

#include "python/csrc/region_code.h"

namespace agspeed::python {

class ProgramCode final : public RegionCode {
 public:
  /// Errors: kInvalidArgument without an entry "forward".
  static StatusOr<std::unique_ptr<const RegionCode>> create(
      std::shared_ptr<const runtime::aten::AtenExecutable> executable);

  Status check(const RegionSignature& signature) const override;
  c10::DispatchKeySet acceptedKeys() const override;
  std::vector<SavedView> savedViews(const RegionSignature& signature) const override;
  StatusOr<std::vector<Argument>> forward(const std::vector<Argument>& inputs) const override;
  StatusOr<std::vector<Argument>> backward(std::vector<Argument> inputs, size_t firstTangent) const override;
  int traverse(visitproc, void*) const override { return 0; }

 private:
  explicit ProgramCode(std::shared_ptr<const runtime::aten::AtenExecutable> executable);
  Status checkCounts(const RegionSignature& signature) const;
  Status checkAliases(const RegionSignature& signature) const;

  const std::shared_ptr<const runtime::aten::AtenExecutable> executable_;
  const runtime::aten::AtenEntry* const forward_;
  const runtime::aten::AtenEntry* const backward_;  ///< nullptr: none
};

}  // namespace agspeed::python
