// SPDX-License-Identifier: Apache-2.0
#include "backends/nvptx/register_estimate.h"

#include <algorithm>
#include <iterator>
#include <vector>

namespace agspeed::backends::nvptx {

using compiler::Cluster;
using compiler::ClusterNode;
using compiler::ClusterSchedule;
using compiler::PointwiseOp;

namespace {

constexpr int kAddressRegisters = 2;
constexpr int kIndexRegisters = 12;    // for coordinates, the column, the group
constexpr int kFormulaRegisters = 20;  // inside a function such as acos, which works on one column at a time

// Operations of a few instructions on floats; all others count as formulas.
constexpr PointwiseOp kShort[] = {
    // keep-sorted
    PointwiseOp::kAbs,   PointwiseOp::kAdd,  PointwiseOp::kCast,       PointwiseOp::kCeil,    PointwiseOp::kDiv,
    PointwiseOp::kFloor, PointwiseOp::kFma,  PointwiseOp::kLoad,       PointwiseOp::kMaximum, PointwiseOp::kMinimum,
    PointwiseOp::kMul,   PointwiseOp::kNeg,  PointwiseOp::kReciprocal, PointwiseOp::kRelu,    PointwiseOp::kRound,
    PointwiseOp::kRsqrt, PointwiseOp::kSign, PointwiseOp::kSqrt,       PointwiseOp::kSub,     PointwiseOp::kSumRows,
    PointwiseOp::kTrunc, PointwiseOp::kWhere};

bool isFormula(const ClusterNode& node) {
  return isFloat(node.dtype) && std::ranges::find(kShort, node.op) == std::end(kShort);
}

int registersOf(DType dtype) { return sizeInBytes(dtype) == 8 ? 2 : 1; }

// Element nodes in the order of their code, each with its last use.
class Lifetimes {
 public:
  Lifetimes(const Cluster& cluster, const ClusterSchedule& schedule)
      : cluster_(cluster), schedule_(schedule), first_(cluster.nodes.size(), -1), last_(cluster.nodes.size(), -1) {
    for (int phase = 0; phase < schedule.numPhases(); ++phase) {
      for (int reduction : schedule.reductions[phase]) {
        use(cluster.nodes[reduction].inputs[0]);
        ++now_;
      }
      if (phase + 1 == schedule.numPhases()) useStored();
      borders_.push_back(now_);
    }
  }

  int peak() const {
    int most = 0;
    for (int step = 0; step <= now_; ++step) most = std::max(most, liveAt(step));
    return most;
  }

  int held() const {
    int most = 0;
    for (int border : borders_) most = std::max(most, liveAt(border));
    return most;
  }

 private:
  // All values are computed before the first one is stored.
  void useStored() {
    std::vector<int32_t> stored;
    for (const compiler::ClusterStore& store : schedule_.elementStores) {
      const ClusterNode& node = cluster_.nodes[store.node];
      stored.push_back(node.op == PointwiseOp::kSumRows ? node.inputs[0] : store.node);
      use(stored.back());
    }
    for (int32_t node : stored) last_[node] = now_;
    ++now_;
  }

  void use(int32_t index) {
    if (schedule_.isRow[index]) return;
    if (first_[index] < 0) {
      for (int32_t input : cluster_.nodes[index].inputs) use(input);
      first_[index] = ++now_;
      for (int32_t input : cluster_.nodes[index].inputs) last_[input] = std::max(last_[input], now_);
    }
    last_[index] = std::max(last_[index], now_);
  }

  int liveAt(int step) const {
    int registers = 0;
    for (size_t i = 0; i < first_.size(); ++i) {
      bool isLive = first_[i] >= 0 && first_[i] <= step && last_[i] > step;
      if (isLive) registers += registersOf(cluster_.nodes[i].dtype);
    }
    return registers;
  }

  const Cluster& cluster_;
  const ClusterSchedule& schedule_;
  int now_ = 0;
  std::vector<int> first_;
  std::vector<int> last_;
  std::vector<int> borders_;  ///< steps at which phases end
};

}  // namespace

RegisterEstimate estimateRegisters(const Cluster& cluster, const ClusterSchedule& schedule) {
  Lifetimes lifetimes(cluster, schedule);
  RegisterEstimate estimate;
  estimate.peak = lifetimes.peak();
  estimate.held = lifetimes.held();
  estimate.fixed = kIndexRegisters + kFormulaRegisters;
  estimate.fixed += kAddressRegisters * static_cast<int>(cluster.operands.size());
  for (size_t i = 0; i < cluster.nodes.size(); ++i) {
    const ClusterNode& node = cluster.nodes[i];
    if (node.op == PointwiseOp::kSumRows) estimate.sums += registersOf(node.dtype);
    if (!schedule.isRow[i] && isFormula(node)) ++estimate.formulas;
    bool isKeptRow = schedule.isRow[i] && node.op != PointwiseOp::kConstant;
    if (isKeptRow) estimate.fixed += registersOf(node.dtype);
  }
  return estimate;
}

}  // namespace agspeed::backends::nvptx
