// SPDX-License-Identifier: Apache-2.0
// WindowLaunch: describes the launch of one window operator while it is imported: its window, its tensors and their
// layouts. See compiler/graph/window.h for the integer table.
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "compiler/graph/cluster.h"
#include "compiler/import/op_import.h"

namespace agspeed::compiler {

class WindowLaunch {
 public:
  WindowLaunch(OpImport& op, WindowOp operation) : op_(&op) { window_.op = operation; }

  Window& window() { return window_; }

  /// Sets the sizes of both axes from the types of image and windows. Errors (of all functions): kUnsupported.
  Status setSizes(const TensorType& image, const TensorType& windows);
  void setAxes(int64_t WindowAxis::* member, const std::array<int64_t, 2>& values);
  Status addInput(const char* parameter) { return addInput(op_->tensor(parameter)); }
  Status addInput(ValueId value);
  Status addResult(size_t index);
  /// Checks everything else. Nothing is emitted before emit().
  Status check();
  void emit();
  /// check(), then emit().
  Status finish();

 private:
  // Sizes or strides of one of its tensors, in the order of the integer table.
  struct Layout {
    SymExpr batch, rows, columns, channels;
  };

  static Layout layoutOf(const Dims& dims, const SymExpr& missingBatch);
  Status addOperand(const TensorType& type);
  Status refuseWhereAtenIsFaster() const;
  void mergeBatch();
  int64_t workOfImage() const;

  OpImport* op_;
  Window window_;
  Cluster cluster_;
  Layout sizes_;  // of the image
  bool mergesBatch_ = true;
  bool hasFilter_ = false;
  std::vector<ValueId> inputs_;
  std::vector<std::pair<size_t, TensorType>> results_;
  std::vector<TensorType> types_;  // of all operands
  std::vector<Layout> strides_;
};

}  // namespace agspeed::compiler
