// SPDX-License-Identifier: Apache-2.0
#include "passes/graph/recompute.h"

#include <algorithm>
#include <optional>
#include <set>

#include "passes/graph/dependencies.h"
#include "passes/graph/unit_fit.h"

namespace agspeed::passes {

using compiler::Graph;
using compiler::Node;
using compiler::NodeKind;
using compiler::PointwiseOp;
using compiler::ValueId;

namespace {

// A copied value depends on at most this number of nodes that are copied with it.
constexpr size_t kMostCopied = 4;
// A stored byte costs as much as this number of loaded ones: its cache line is read before it is written.
constexpr int64_t kStoreCost = 2;
// A smaller operand stays in the cache while the kernel runs.
constexpr int64_t kSmallShare = 8;

// Operations that take no longer than a load.
bool isCheap(const Node& node) {
  using enum PointwiseOp;
  constexpr PointwiseOp kCheap[] = {kCast, kAbs, kNeg, kRelu, kAdd, kSub, kMul,        kMaximum, kMinimum,
                                    kEq,   kNe,  kLt,  kLe,   kGt,  kGe,  kLogicalNot, kWhere,   kConstant};
  return node.kind == NodeKind::kPointwise && std::ranges::find(kCheap, node.op) != std::end(kCheap);
}

class Recomputer {
 public:
  Recomputer(const AccessResolver& resolver, const FusionLimits& limits, std::vector<FusionUnit> units)
      : resolver_(resolver),
        graph_(resolver.graph()),
        limits_(limits),
        units_(std::move(units)),
        ownerOf_(graph_.nodes.size(), -1),
        users_(compiler::usersOf(graph_)),
        isOutput_(compiler::outputMask(graph_)),
        isMutated_(mutatedMask(graph_)),
        isStored_(valuesBetween(resolver, units_)) {
    for (size_t u = 0; u < units_.size(); ++u) {
      for (int32_t node : units_[u].nodes) ownerOf_[node] = static_cast<int32_t>(u);
    }
  }

  std::vector<FusionUnit> run() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (ownerOf_[i] >= 0 && units_[ownerOf_[i]].isKernel) tryNode(static_cast<int32_t>(i));
    }
    dropUnused();
    return std::move(units_);
  }

 private:
  // A value as operations on values in memory.
  struct Formula {
    std::set<int32_t> nodes;
    std::set<ValueId> leaves;
  };

  void tryNode(int32_t index) {
    const ValueId value = graph_.nodes[index].results[0];
    if (!isStored_[value] || isOutput_[value] || !isWhole(value, units_[ownerOf_[index]])) return;
    std::optional<std::set<int32_t>> readers = otherReaders(value, ownerOf_[index]);
    std::optional<Formula> formula = readers ? formulaOf(index) : std::nullopt;
    if (!formula || !pays(value, *formula, *readers)) return;
    for (int32_t reader : *readers) {
      if (!fits(*formula, units_[reader])) return;
    }
    for (int32_t reader : *readers) copyTo(units_[reader], *formula);
    isStored_[value] = false;
  }

  int64_t numElements(const compiler::Dims& sizes) const {
    return compiler::estimate(compiler::numElements(sizes), graph_.hints);
  }

  int64_t numBytes(ValueId value) const {
    return numElements(graph_.typeOf(value).sizes) * static_cast<int64_t>(sizeInBytes(graph_.typeOf(value).dtype));
  }

  // Whether the value has an element for each point of the unit's space.
  bool isWhole(ValueId value, const FusionUnit& unit) const {
    return compiler::sameDims(graph_.typeOf(value).sizes, unit.space.sizes);
  }

  // The kernels that read the value from memory; nullopt if something else reads it, or a kernel reads a part of it.
  std::optional<std::set<int32_t>> otherReaders(ValueId value, int32_t owner) const {
    std::set<int32_t> readers;
    for (int32_t user : users_[value]) {
      const int32_t unit = ownerOf_[user];
      if (unit == owner) continue;
      if (unit < 0 || !units_[unit].isKernel || !isWhole(value, units_[unit])) return std::nullopt;
      readers.insert(unit);
    }
    return readers;
  }

  std::optional<Formula> formulaOf(int32_t index) const {
    const std::vector<int32_t>& members = units_[ownerOf_[index]].nodes;
    Formula formula;
    std::vector<int32_t> worklist = {index};
    while (!worklist.empty()) {
      const int32_t current = worklist.back();
      worklist.pop_back();
      if (!isCheap(graph_.nodes[current])) return std::nullopt;
      formula.nodes.insert(current);
      if (formula.nodes.size() > kMostCopied) return std::nullopt;
      for (ValueId input : graph_.nodes[current].inputs) {
        const ValueId root = resolver_.rootOf(input);
        const int32_t producer = resolver_.producerOf(root);
        if (isInlined(resolver_, root)) continue;
        if (!isStored_[root] && std::ranges::binary_search(members, producer)) {
          worklist.push_back(producer);
        } else if (isMutated_[root]) {
          return std::nullopt;
        } else {
          formula.leaves.insert(root);
        }
      }
    }
    return formula;
  }

  std::set<ValueId> readsOf(const FusionUnit& unit) const {
    std::set<ValueId> reads;
    for (int32_t node : unit.nodes) {
      for (ValueId input : graph_.nodes[node].inputs) reads.insert(resolver_.rootOf(input));
    }
    return reads;
  }

  // Whether the kernels load fewer bytes more than the store and the loads of the value cost. Values that other kernels
  // compute live longer if they are leaves, so there is at most one such large leaf.
  bool pays(ValueId value, const Formula& formula, const std::set<int32_t>& readers) const {
    const int64_t bytes = numBytes(value);
    int64_t loaded = 0;
    size_t numLonger = 0;
    for (ValueId leaf : formula.leaves) {
      if (numBytes(leaf) * kSmallShare <= bytes) continue;
      numLonger += resolver_.producerOf(leaf) >= 0;
      for (int32_t reader : readers) loaded += readsOf(units_[reader]).contains(leaf) ? 0 : numBytes(leaf);
    }
    return numLonger <= 1 && loaded < bytes * (kStoreCost + static_cast<int64_t>(readers.size()));
  }

  bool fits(const Formula& formula, const FusionUnit& unit) const {
    std::set<int32_t> members(unit.nodes.begin(), unit.nodes.end());
    members.insert(formula.nodes.begin(), formula.nodes.end());
    std::set<ValueId> operands;
    for (int32_t node : members) {
      if (!fitsNode(resolver_, node, unit.space, members)) return false;
      const Node& each = graph_.nodes[node];
      for (ValueId input : each.inputs) {
        const ValueId root = resolver_.rootOf(input);
        const bool isLoaded = !isInlined(resolver_, root) && !members.contains(resolver_.producerOf(root));
        if (isLoaded) operands.insert(compiler::isZero(resolver_.offsetOf(input)) ? root : input);
      }
      if (isStored_[each.results[0]] && !formula.nodes.contains(node)) operands.insert(each.results[0]);
    }
    return members.size() <= limits_.maxNodes && operands.size() <= limits_.maxOperands;
  }

  static void copyTo(FusionUnit& unit, const Formula& formula) {
    auto add = [&](std::vector<int32_t>& nodes) {
      std::set<int32_t> all(nodes.begin(), nodes.end());
      all.insert(formula.nodes.begin(), formula.nodes.end());
      nodes.assign(all.begin(), all.end());
    };
    add(unit.nodes);
    add(unit.copies);
  }

  // Drops nodes that nothing reads now, and kernels without nodes.
  void dropUnused() {
    std::vector<bool> isRead = isOutput_;
    for (size_t u = units_.size(); u-- > 0;) {
      FusionUnit& unit = units_[u];
      const std::set<int32_t> members(unit.nodes.begin(), unit.nodes.end());
      std::set<int32_t> isUsedHere;
      std::vector<int32_t> kept;
      for (size_t i = unit.nodes.size(); i-- > 0;) {
        const int32_t index = unit.nodes[i];
        const Node& node = graph_.nodes[index];
        const bool isCopy = std::ranges::binary_search(unit.copies, index);
        const bool isWanted = isUsedHere.contains(index) || (!isCopy && isRead[node.results[0]]);
        if (unit.isKernel && !isWanted) continue;
        kept.push_back(index);
        for (ValueId input : node.inputs) {
          const ValueId source = unit.isKernel || node.viewOffset ? resolver_.rootOf(input) : input;
          const int32_t producer = resolver_.producerOf(source);
          if (unit.isKernel && members.contains(producer)) {
            isUsedHere.insert(producer);
          } else {
            isRead[source] = true;
          }
        }
      }
      unit.nodes.assign(kept.rbegin(), kept.rend());
    }
    std::erase_if(units_, [](const FusionUnit& unit) { return unit.nodes.empty(); });
  }

  const AccessResolver& resolver_;
  const Graph& graph_;
  FusionLimits limits_;
  std::vector<FusionUnit> units_;
  std::vector<int32_t> ownerOf_;  // by node: the unit that may store its result, or -1
  std::vector<std::vector<int32_t>> users_;
  std::vector<bool> isOutput_;
  std::vector<bool> isMutated_;
  std::vector<bool> isStored_;
};

}  // namespace

std::vector<bool> valuesBetween(const AccessResolver& resolver, const std::vector<FusionUnit>& units) {
  const Graph& graph = resolver.graph();
  std::vector<bool> isBetween = compiler::outputMask(graph);
  for (const FusionUnit& unit : units) {
    for (int32_t node : unit.nodes) {
      for (ValueId input : graph.nodes[node].inputs) {
        bool readsThroughViews = unit.isKernel || graph.nodes[node].viewOffset;
        ValueId source = readsThroughViews ? resolver.rootOf(input) : input;
        int32_t producer = resolver.producerOf(source);
        if (producer >= 0 && !std::ranges::binary_search(unit.nodes, producer)) isBetween[source] = true;
      }
    }
  }
  return isBetween;
}

std::vector<FusionUnit> recomputeCheaply(const AccessResolver& resolver, const FusionLimits& limits,
                                         std::vector<FusionUnit> units) {
  return Recomputer(resolver, limits, std::move(units)).run();
}

}  // namespace agspeed::passes
