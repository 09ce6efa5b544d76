// SPDX-License-Identifier: Apache-2.0
#include "passes/graph/fusion_plan.h"

#include <algorithm>
#include <map>
#include <queue>
#include <set>

#include "passes/graph/dependencies.h"
#include "passes/graph/recompute.h"
#include "passes/graph/unit_fit.h"

namespace agspeed::passes {

using compiler::Dims;
using compiler::Graph;
using compiler::isOne;
using compiler::kNoValue;
using compiler::Node;
using compiler::NodeKind;
using compiler::PointwiseOp;
using compiler::ValueId;

namespace {

// Row nodes can join a space without reductions only if this fixes its columns, and then fewer of its dimensions can
// collapse into one loop. It pays if there are at least this many columns and rows.
constexpr int64_t kMinFixedColumns = 16;
constexpr int64_t kMinFixedRows = 16;

// Whether the node reads the memory behind views, so that the views need not exist.
bool readsThroughViews(const Node& node) { return isFusible(node) || node.viewOffset; }

class Planner {
 public:
  Planner(const AccessResolver& resolver, const FusionLimits& limits)
      : resolver_(resolver), graph_(resolver.graph()), limits_(limits), unitOf_(graph_.nodes.size(), -1) {}

  std::vector<FusionUnit> plan() {
    markLive();
    makeUnits();
    connectUnits();
    mergeAlongDataFlow();
    mergeSharedReads();
    return recomputeCheaply(resolver_, limits_, inOrder());
  }

 private:
  struct Unit {
    FusionUnit plan;
    std::set<int32_t> before;  // units that must run earlier
    std::set<int32_t> after;
    bool isAlive = true;
  };

  // --- which nodes are needed ---

  void need(ValueId value) {
    int32_t producer = resolver_.producerOf(value);
    if (producer >= 0 && !isLive_[producer]) {
      isLive_[producer] = true;
      worklist_.push_back(producer);
    }
  }

  void markLive() {
    isLive_.assign(graph_.nodes.size(), false);
    for (ValueId output : graph_.outputs) {
      if (output != kNoValue) need(output);
    }
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (graph_.nodes[i].effects.isPure() || isLive_[i]) continue;
      isLive_[i] = true;
      worklist_.push_back(static_cast<int32_t>(i));
    }
    while (!worklist_.empty()) {
      const Node& node = graph_.nodes[worklist_.back()];
      worklist_.pop_back();
      for (ValueId input : node.inputs) {
        ValueId source = readsThroughViews(node) ? resolver_.rootOf(input) : input;
        if (!isFusible(node) || !isInlined(resolver_, source)) need(source);
      }
    }
  }

  // --- units and their order ---

  void makeUnits() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (!isLive_[i]) continue;
      const Node& node = graph_.nodes[i];
      Unit unit;
      unit.plan.nodes = {static_cast<int32_t>(i)};
      unit.plan.isKernel = isFusible(node);
      if (unit.plan.isKernel) {
        bool isReduce = node.kind == NodeKind::kReduce;
        unit.plan.space.sizes = graph_.typeOf(isReduce ? node.inputs[0] : node.results[0]).sizes;
        auto numDims = static_cast<size_t>(node.numReducedDims);
        unit.plan.space.numColumnDims = !isReduce ? 0 : sumsRows(node) ? unit.plan.space.rank() - numDims : numDims;
      }
      unitOf_[i] = static_cast<int32_t>(units_.size());
      units_.push_back(std::move(unit));
    }
  }

  void connect(int32_t earlier, int32_t later) {
    if (earlier < 0 || later < 0 || earlier == later) return;
    units_[later].before.insert(earlier);
    units_[earlier].after.insert(later);
  }

  void connectUnits() {
    std::vector<std::vector<int32_t>> effectOrder = effectOrderOf(graph_);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (!isLive_[i]) continue;
      const Node& node = graph_.nodes[i];
      for (ValueId input : node.inputs) {
        ValueId source = readsThroughViews(node) ? resolver_.rootOf(input) : input;
        int32_t producer = resolver_.producerOf(source);
        bool isFree = isFusible(node) && isInlined(resolver_, source);
        if (producer >= 0 && !isFree) connect(unitOf_[producer], unitOf_[i]);
      }
      for (int32_t earlier : effectOrder[i]) connect(unitOf_[earlier], unitOf_[i]);
    }
  }

  int32_t lastNode(int32_t unit) const { return units_[unit].plan.nodes.back(); }

  // Whether a path leads from `from` to `to` through another unit. Merging the ends of such a path would make a cycle.
  bool hasDetour(int32_t from, int32_t to) const {
    std::vector<int32_t> stack;
    std::set<int32_t> seen;
    auto visit = [&](int32_t unit) {
      if (seen.insert(unit).second) stack.push_back(unit);
    };
    for (int32_t next : units_[from].after) {
      if (next != to) visit(next);
    }
    while (!stack.empty()) {
      int32_t unit = stack.back();
      stack.pop_back();
      for (int32_t next : units_[unit].after) {
        if (next == to) return true;
        visit(next);
      }
    }
    return false;
  }

  // --- merging ---

  // The space that holds the nodes of both spaces; nullopt if there is none or it does not pay.
  std::optional<Space> commonSpace(const Space& a, const Space& b) const {
    if (compiler::sameDims(a.sizes, b.sizes)) {
      if (a.numColumnDims > 0 && b.numColumnDims > 0 && a.numColumnDims != b.numColumnDims) return std::nullopt;
      return Space{a.sizes, std::max(a.numColumnDims, b.numColumnDims)};
    }
    if (std::optional<Space> space = spaceWithRows(b, a)) return space;
    return spaceWithRows(a, b);
  }

  // The space `whole` with columns such that the nodes of `row` are its row nodes; nullopt if there is none or it does
  // not pay.
  std::optional<Space> spaceWithRows(const Space& whole, const Space& row) const {
    if (row.numColumnDims > 0) return std::nullopt;
    if (whole.numColumnDims > 0) {
      return classify(row.sizes, whole) == ShapeClass::kRow ? std::optional(whole) : std::nullopt;
    }
    std::optional<size_t> numDims =
        compiler::sameDims(row.sizes, whole.sizes) ? std::nullopt : columnDimsBetween(whole.sizes, row.sizes);
    if (!numDims) return std::nullopt;
    Space space{whole.sizes, *numDims};
    int64_t numRows = compiler::estimate(compiler::numElements(row.sizes), graph_.hints);
    int64_t numElements = compiler::estimate(compiler::numElements(whole.sizes), graph_.hints);
    bool isWorth = numRows >= kMinFixedRows && numElements / std::max<int64_t>(numRows, 1) >= kMinFixedColumns;
    return isWorth ? std::optional(space) : std::nullopt;
  }

  size_t countOperands(const std::vector<int32_t>& nodes, const std::set<int32_t>& members) const {
    std::set<ValueId> roots;
    for (int32_t index : nodes) {
      for (ValueId input : graph_.nodes[index].inputs) {
        ValueId root = resolver_.rootOf(input);
        bool isLoaded = !isInlined(resolver_, root) && !members.contains(resolver_.producerOf(root));
        if (isLoaded) roots.insert(compiler::isZero(resolver_.offsetOf(input)) ? root : input);
      }
      if (isReadOutside(index, members)) roots.insert(graph_.nodes[index].results[0]);
    }
    return roots.size();
  }

  bool isReadOutside(int32_t index, const std::set<int32_t>& members) const {
    ValueId result = graph_.nodes[index].results[0];
    if (isOutput_[result]) return true;
    return std::ranges::any_of(users_[result], [&](int32_t user) { return isLive_[user] && !members.contains(user); });
  }

  // How many results of calls are read by these nodes alone, maybe through views.
  size_t countCallResults(const std::vector<int32_t>& nodes, const std::set<int32_t>& members) const {
    std::set<ValueId> results;
    for (int32_t index : nodes) {
      for (ValueId input : graph_.nodes[index].inputs) {
        ValueId root = resolver_.rootOf(input);
        int32_t producer = resolver_.producerOf(root);
        bool isCall = producer >= 0 && graph_.nodes[producer].kind == NodeKind::kCall;
        if (isCall && isReadOnlyBy(members, root)) results.insert(root);
      }
    }
    return results.size();
  }

  bool isReadOnlyBy(const std::set<int32_t>& members, ValueId value) const {
    if (isOutput_[value]) return false;
    return std::ranges::all_of(users_[value], [&](int32_t user) {
      const Node& node = graph_.nodes[user];
      if (members.contains(user)) return true;
      return node.viewOffset ? isReadOnlyBy(members, node.results[0]) : !isLive_[user];
    });
  }

  // Whether all sums over rows have the same blocks. One kernel has only one size of blocks.
  bool haveSameBlocks(const std::vector<int32_t>& nodes) const {
    const Node* first = nullptr;
    for (int32_t index : nodes) {
      const Node& node = graph_.nodes[index];
      if (!sumsRows(node)) continue;
      if (first && !compiler::sameValue(first->blockRows, node.blockRows)) return false;
      first = &node;
    }
    return true;
  }

  bool tryMerge(int32_t a, int32_t b) {
    const FusionUnit& x = units_[a].plan;
    const FusionUnit& y = units_[b].plan;
    if (x.nodes.size() + y.nodes.size() > limits_.maxNodes) return false;
    std::optional<Space> space = commonSpace(x.space, y.space);
    if (!space) return false;
    std::vector<int32_t> nodes;
    std::ranges::merge(x.nodes, y.nodes, std::back_inserter(nodes));
    std::set<int32_t> members(nodes.begin(), nodes.end());
    if (!haveSameBlocks(nodes) || countOperands(nodes, members) > limits_.maxOperands) return false;
    if (countCallResults(nodes, members) > limits_.maxCallResults) return false;
    for (int32_t node : nodes) {
      if (!fitsNode(resolver_, node, *space, members)) return false;
    }
    if (hasDetour(a, b) || hasDetour(b, a)) return false;
    merge(a, b, std::move(nodes), std::move(*space));
    return true;
  }

  // Moves the nodes and the edges of unit b to unit a.
  void merge(int32_t a, int32_t b, std::vector<int32_t> nodes, Space space) {
    for (int32_t node : units_[b].plan.nodes) unitOf_[node] = a;
    units_[a].plan.nodes = std::move(nodes);
    units_[a].plan.space = std::move(space);
    for (int32_t unit : units_[b].before) {
      units_[unit].after.erase(b);
      connect(unit, a);
    }
    for (int32_t unit : units_[b].after) {
      units_[unit].before.erase(b);
      connect(a, unit);
    }
    units_[b].isAlive = false;
    units_[b].before.clear();
    units_[b].after.clear();
    units_[a].before.erase(a);
    units_[a].after.erase(a);
  }

  bool isOpenKernel(int32_t unit) const { return units_[unit].isAlive && units_[unit].plan.isKernel; }

  void mergeAlongDataFlow() {
    users_ = compiler::usersOf(graph_);
    isOutput_ = compiler::outputMask(graph_);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (!isLive_[i] || !isFusible(graph_.nodes[i])) continue;
      bool hasMerged = true;
      while (hasMerged) {
        int32_t unit = unitOf_[i];
        std::vector<int32_t> before(units_[unit].before.begin(), units_[unit].before.end());
        hasMerged = std::ranges::any_of(
            before, [&](int32_t producer) { return isOpenKernel(producer) && tryMerge(producer, unit); });
      }
    }
  }

  // Merges units that read the same tensor, so that one kernel reads it once. It tries this only if the spaces of both
  // units have the same sizes, and as many elements as the tensor.
  void mergeSharedReads() {
    std::map<ValueId, std::vector<int32_t>> readers;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (!isLive_[i] || !isFusible(graph_.nodes[i])) continue;
      for (ValueId input : graph_.nodes[i].inputs) {
        ValueId root = resolver_.rootOf(input);
        if (!isInlined(resolver_, root)) readers[root].push_back(static_cast<int32_t>(i));
      }
    }
    for (const auto& [root, nodes] : readers) {
      for (size_t i = 1; i < nodes.size(); ++i) {
        int32_t a = unitOf_[nodes[i - 1]];
        int32_t b = unitOf_[nodes[i]];
        bool isFullRead = compiler::sameValue(compiler::numElements(graph_.typeOf(root).sizes),
                                              compiler::numElements(units_[a].plan.space.sizes));
        if (a != b && isFullRead && compiler::sameDims(units_[a].plan.space.sizes, units_[b].plan.space.sizes)) {
          tryMerge(a, b);
        }
      }
    }
  }

  // --- result ---

  // Orders the units topologically and close to the original order. The next unit is the one among the ready units
  // whose last node comes first in the graph.
  std::vector<FusionUnit> inOrder() {
    using Entry = std::pair<int32_t, int32_t>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
    std::vector<size_t> numWaiting(units_.size(), 0);
    for (size_t u = 0; u < units_.size(); ++u) {
      numWaiting[u] = units_[u].before.size();
      if (units_[u].isAlive && numWaiting[u] == 0) ready.emplace(lastNode(static_cast<int32_t>(u)), u);
    }
    std::vector<FusionUnit> result;
    while (!ready.empty()) {
      int32_t unit = ready.top().second;
      ready.pop();
      result.push_back(units_[unit].plan);
      for (int32_t next : units_[unit].after) {
        if (--numWaiting[next] == 0) ready.emplace(lastNode(next), next);
      }
    }
    return result;
  }

  const AccessResolver& resolver_;
  const Graph& graph_;
  FusionLimits limits_;
  std::vector<bool> isLive_;
  std::vector<int32_t> worklist_;
  std::vector<Unit> units_;
  std::vector<int32_t> unitOf_;
  std::vector<std::vector<int32_t>> users_;
  std::vector<bool> isOutput_;
};

}  // namespace

std::vector<FusionUnit> planFusion(const AccessResolver& resolver, const FusionLimits& limits) {
  return Planner(resolver, limits).plan();
}

}  // namespace agspeed::passes
