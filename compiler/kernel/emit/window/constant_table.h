// SPDX-License-Identifier: Apache-2.0
// ConstantTable: numbers that are known at compile time, in the constant memory of a kernel's module.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/kernel/value_builder.h"

namespace agspeed::compiler {

class ConstantTable {
 public:
  ConstantTable() = default;
  /// Adds a table of i64 to the module of the insertion point. Requires: values is not empty.
  ConstantTable(passes::ValueBuilder& b, const std::vector<int64_t>& values);
  /// The same for numbers of a float type, to which they are rounded.
  ConstantTable(passes::ValueBuilder& b, const std::vector<double>& values, mlir::FloatType type);

  /// The number at `index`. The index must be inside the table.
  passes::Val at(passes::Val index) const;

 private:
  void add(passes::ValueBuilder& b, mlir::Type element, mlir::ElementsAttr values);

  mlir::Type element_;
  mlir::Value memory_;
};

}  // namespace agspeed::compiler
