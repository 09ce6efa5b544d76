// SPDX-License-Identifier: Apache-2.0
#include "backends/reference/backend.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "backends/reference/scalar_op.h"
#include "backends/reference/window.h"

namespace agspeed::backends::reference {

using compiler::Cluster;
using compiler::ClusterNode;
using compiler::infoOf;
using compiler::PointwiseOp;

namespace {

// One launch, with the tables of runtime/program.h.
struct Launch {
  const Cluster& cluster;
  void* const* pointers;
  const int64_t* integers;

  int64_t rank() const { return cluster.outerRank; }
  int64_t columns() const { return integers[rank()]; }
  int64_t rows() const { return std::accumulate(integers, integers + rank(), int64_t{1}, std::multiplies<>()); }
  int64_t blockRows() const { return integers[(rank() + 1) * (1 + static_cast<int64_t>(cluster.operands.size()))]; }
  int64_t outerStride(size_t operand, int64_t dim) const { return strides(operand)[dim]; }
  int64_t columnStride(size_t operand) const { return strides(operand)[rank()]; }

  // Element offset of a row's first column.
  int64_t rowOffset(size_t operand, int64_t row) const {
    int64_t offset = 0;
    for (int64_t dim = rank(); dim-- > 0;) {
      offset += row % integers[dim] * outerStride(operand, dim);
      row /= integers[dim];
    }
    return offset;
  }

 private:
  const int64_t* strides(size_t operand) const { return integers + (rank() + 1) * (1 + static_cast<int64_t>(operand)); }
};

// Interprets one row: one node after the other, each over all columns (or once, for a row node).
class RowInterpreter {
 public:
  RowInterpreter(const Launch& launch, int64_t row, int64_t beginColumn, int64_t endColumn)
      : launch_(launch), row_(row), begin_(beginColumn), end_(endColumn), values_(launch.cluster.nodes.size()) {}

  void run() {
    for (size_t i = 0; i < values_.size(); ++i) evaluate(i);
    for (const compiler::ClusterStore& store : launch_.cluster.stores) {
      if (!launch_.cluster.operands[store.operand].isPerBlock) write(store);
    }
  }

  /// The values of a node, one per column. Requires: run().
  const std::vector<Scalar>& valuesOf(int32_t node) const { return values_[node]; }

 private:
  void evaluate(size_t index) {
    const ClusterNode& node = launch_.cluster.nodes[index];
    std::vector<Scalar>& out = values_[index];
    if (infoOf(node.op).isReduction) {
      out = {reduce(node)};
      return;
    }
    if (node.op == PointwiseOp::kSumRows) {
      out = values_[node.inputs[0]];
      return;
    }
    int64_t count = node.isPerRow ? 1 : end_ - begin_;
    out.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) out[static_cast<size_t>(i)] = element(node, i);
  }

  Scalar element(const ClusterNode& node, int64_t i) const {
    if (node.op == PointwiseOp::kConstant) return constantScalar(node.constant, node.dtype);
    if (node.op == PointwiseOp::kLoad) {
      auto operand = static_cast<size_t>(node.operand);
      int64_t offset = launch_.rowOffset(operand, row_) + (begin_ + i) * launch_.columnStride(operand);
      return loadScalar(launch_.pointers[operand], node.dtype, offset);
    }
    std::vector<Scalar> inputs;
    for (int32_t input : node.inputs) inputs.push_back(at(input, i));
    return applyScalar(node.op, node.dtype, launch_.cluster.nodes[node.inputs.back()].dtype, inputs);
  }

  Scalar at(int32_t node, int64_t i) const {
    bool isRow = launch_.cluster.nodes[node].isPerRow;
    return values_[node][isRow ? 0 : static_cast<size_t>(i)];
  }

  Scalar reduce(const ClusterNode& node) const {
    Scalar result = reductionIdentity(node.op, node.dtype);
    for (int64_t i = 0; i < end_ - begin_; ++i) {
      result = combineScalars(node.op, node.dtype, result, at(node.inputs[0], i));
    }
    return convertScalar(result, isFloat(node.dtype) ? DType::kF64 : DType::kI64, node.dtype);
  }

  void write(const compiler::ClusterStore& store) const {
    auto operand = static_cast<size_t>(store.operand);
    const ClusterNode& node = launch_.cluster.nodes[store.node];
    int64_t base = launch_.rowOffset(operand, row_) + begin_ * launch_.columnStride(operand);
    int64_t count = node.isPerRow ? 1 : end_ - begin_;
    for (int64_t i = 0; i < count; ++i) {
      storeScalar(launch_.pointers[operand], node.dtype, base + i * launch_.columnStride(operand), at(store.node, i));
    }
  }

  const Launch& launch_;
  int64_t row_;
  int64_t begin_;
  int64_t end_;
  std::vector<std::vector<Scalar>> values_;
};

// Runs the rows of one block and stores their sums.
void runBlock(const Launch& launch, int64_t block) {
  std::vector<std::vector<Scalar>> sums(launch.cluster.nodes.size());
  for (const compiler::ClusterStore& store : launch.cluster.stores) {
    const ClusterNode& node = launch.cluster.nodes[store.node];
    sums[store.node].assign(launch.columns(), reductionIdentity(PointwiseOp::kReduceSum, node.dtype));
  }
  int64_t end = std::min(launch.rows(), (block + 1) * launch.blockRows());
  for (int64_t row = block * launch.blockRows(); row < end; ++row) {
    RowInterpreter interpreter(launch, row, 0, launch.columns());
    interpreter.run();
    for (const compiler::ClusterStore& store : launch.cluster.stores) {
      if (!launch.cluster.operands[store.operand].isPerBlock) continue;
      std::vector<Scalar>& sum = sums[store.node];
      const std::vector<Scalar>& values = interpreter.valuesOf(store.node);
      DType dtype = launch.cluster.nodes[store.node].dtype;
      for (size_t i = 0; i < sum.size(); ++i) {
        sum[i] = combineScalars(PointwiseOp::kReduceSum, dtype, sum[i], values[i]);
      }
    }
  }
  for (const compiler::ClusterStore& store : launch.cluster.stores) {
    auto operand = static_cast<size_t>(store.operand);
    if (!launch.cluster.operands[operand].isPerBlock) continue;
    DType dtype = launch.cluster.nodes[store.node].dtype;
    int64_t base = block * launch.outerStride(operand, 0);
    for (size_t i = 0; i < sums[store.node].size(); ++i) {
      Scalar sum = convertScalar(sums[store.node][i], isFloat(dtype) ? DType::kF64 : DType::kI64, dtype);
      storeScalar(launch.pointers[operand], dtype, base + static_cast<int64_t>(i), sum);
    }
  }
}

class Library : public runtime::HostKernelLibrary {
 public:
  explicit Library(std::vector<Cluster> clusters) : clusters_(std::move(clusters)) {}
  size_t numKernels() const override { return clusters_.size(); }
  runtime::KernelFunction kernel(size_t) const override { return nullptr; }

  void launch(size_t index, void* const* pointers, const int64_t* integers, int64_t begin, int64_t end) const override {
    if (clusters_[index].window) {
      runWindow(clusters_[index], pointers, integers, begin, end);
      return;
    }
    Launch launch{clusters_[index], pointers, integers};
    if (launch.rank() == 0) {
      RowInterpreter(launch, 0, begin, end).run();
      return;
    }
    if (launch.cluster.sumsRows()) {
      for (int64_t block = begin; block < end; ++block) runBlock(launch, block);
      return;
    }
    for (int64_t row = begin; row < end; ++row) RowInterpreter(launch, row, 0, launch.columns()).run();
  }

 private:
  std::vector<Cluster> clusters_;
};

}  // namespace

StatusOr<std::shared_ptr<const runtime::KernelLibrary>> build(const std::vector<Cluster>& clusters,
                                                              const compiler::CompileOptions&, runtime::CompileStats&) {
  for (const Cluster& cluster : clusters) AG_RETURN_IF_ERROR(cluster.verify());
  return std::shared_ptr<const runtime::KernelLibrary>(std::make_shared<Library>(clusters));
}

}  // namespace agspeed::backends::reference
