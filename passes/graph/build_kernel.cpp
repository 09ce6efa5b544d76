// SPDX-License-Identifier: Apache-2.0
#include "passes/graph/build_kernel.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "passes/graph/unit_fit.h"

namespace agspeed::passes {

using compiler::Cluster;
using compiler::ClusterNode;
using compiler::ClusterOperand;
using compiler::Dims;
using compiler::Graph;
using compiler::isOne;
using compiler::isZero;
using compiler::Node;
using compiler::NodeKind;
using compiler::PointwiseOp;
using compiler::sameValue;
using compiler::ValueId;

namespace {

// The smallest slice of a launch that is worth a thread has at least this many evaluations of nodes and at least this
// many elements.
constexpr int64_t kGrainWork = 1 << 18;
constexpr int64_t kMinGrainElements = 1024;
// A shorter innermost loop does not fill a vector.
constexpr int64_t kShortLoop = 16;

// Transposing rows pays if there are at least this many neighbours. Their tiles, with this many rows, fit the limit.
constexpr int64_t kTileRows = 16;
constexpr int64_t kMostTileBytes = 256 * 1024;

// A tensor that the kernel reads or writes. Its strides are per dimension of the space until collapse() has run, then
// per loop.
struct Operand {
  ValueId value = compiler::kNoValue;
  Dims strides;
  SymExpr offset = 0;
  bool isOutput = false;
  bool isRow = false;    // an output with one element per row
  bool isBlock = false;  // an output with one row per block
  int32_t loadNode = -1;
};

// The loops that a kernel runs. Each loop covers one or several dimensions of the space. The columns are the innermost
// loop.
struct Loops {
  Dims outer;
  SymExpr columns = 1;
};

ClusterNode makeNode(PointwiseOp op, DType dtype) {
  ClusterNode node;
  node.op = op;
  node.dtype = dtype;
  return node;
}

class KernelBuilder {
 public:
  KernelBuilder(const AccessResolver& resolver, const FusionUnit& unit, const std::vector<bool>& isNeeded)
      : resolver_(resolver), graph_(resolver.graph()), unit_(unit), isNeeded_(isNeeded) {}

  BuiltKernel build() {
    collectOperands();
    Loops loops = collapse();
    declareOperands(loops);
    for (int32_t node : unit_.nodes) emitNode(graph_.nodes[node]);
    emitStores();
    result_.cluster.outerRank = static_cast<int32_t>(loops.outer.size());
    describeLaunch(loops);
    return std::move(result_);
  }

 private:
  const Dims& sizesOf(const Node& node) const {
    return graph_.typeOf(node.kind == NodeKind::kReduce ? node.inputs[0] : node.results[0]).sizes;
  }

  bool isInside(ValueId value) const { return std::ranges::binary_search(unit_.nodes, resolver_.producerOf(value)); }

  // --- operands over the space ---

  size_t loadOperand(const Access& access) {
    for (size_t i = 0; i < operands_.size(); ++i) {
      bool isSame = !operands_[i].isOutput && operands_[i].value == access.root &&
                    compiler::sameDims(spaceStrides_[i], access.strides) &&
                    sameValue(operands_[i].offset, access.offset);
      if (isSame) return i;
    }
    operands_.push_back({.value = access.root, .strides = access.strides, .offset = access.offset});
    spaceStrides_.push_back(access.strides);
    return operands_.size() - 1;
  }

  void collectOperands() {
    for (int32_t index : unit_.nodes) {
      const Node& node = graph_.nodes[index];
      for (ValueId input : node.inputs) {
        Access access = resolver_.resolve(input, sizesOf(node), unit_.space.rank());
        if (!isInlined(resolver_, access.root) && !isInside(access.root)) loadOperand(access);
      }
    }
    for (int32_t index : unit_.nodes) {
      ValueId value = graph_.nodes[index].results[0];
      if (!isNeeded_[value] || std::ranges::binary_search(unit_.copies, index)) continue;
      if (graph_.nodes[index].op == PointwiseOp::kSumRows) {
        addBlockOutput(value);
        continue;
      }
      Operand output{.value = value,
                     .strides = stridesInSpace(graph_.typeOf(value), unit_.space.rank()),
                     .offset = resolver_.partOffsetOf(value),
                     .isOutput = true};
      output.isRow = graph_.nodes[index].kind == NodeKind::kReduce ||
                     classify(graph_.typeOf(value).sizes, unit_.space) == ShapeClass::kRow;
      spaceStrides_.push_back(output.strides);
      operands_.push_back(std::move(output));
    }
  }

  // Adds the output of a sum over rows. Its strides over the rows are 0, because all rows of a block are added up in
  // the same place. Its columns are the last dimensions of the result.
  void addBlockOutput(ValueId value) {
    const Dims& strides = graph_.typeOf(value).strides;
    Dims overSpace(unit_.space.rank(), SymExpr(0));
    for (size_t i = 1; i <= unit_.space.numColumnDims; ++i) *(overSpace.end() - i) = *(strides.end() - i);
    spaceStrides_.push_back(overSpace);
    operands_.push_back({.value = value, .strides = std::move(overSpace), .isOutput = true, .isBlock = true});
  }

  // --- loops ---

  // Dimensions of the space in the order of the loops. If the columns are not fixed, the dimensions are ordered by the
  // strides of the first output, largest first. If the innermost loop of a copy is short then, they are ordered by the
  // strides of its input, if that makes the loop longer.
  std::vector<size_t> loopOrder() const {
    std::vector<size_t> order(unit_.space.rank());
    std::iota(order.begin(), order.end(), 0);
    auto output =
        std::ranges::find_if(operands_, [](const Operand& o) { return o.isOutput && !o.isRow && !o.isBlock; });
    if (unit_.space.numColumnDims > 0 || output == operands_.end()) return order;
    orderBy(*output, order);
    if (operands_.size() == 2 && !operands_[0].isOutput && innermostSize(order) < kShortLoop) {
      std::vector<size_t> other = order;
      orderBy(operands_[0], other);
      if (innermostSize(other) >= kShortLoop) return other;
    }
    return order;
  }

  void orderBy(const Operand& operand, std::vector<size_t>& order) const {
    auto stride = [&](size_t d) { return compiler::estimate(operand.strides[d], graph_.hints); };
    std::ranges::stable_sort(order, [&](size_t a, size_t b) { return stride(a) > stride(b); });
  }

  // The size of the innermost loop if the dimensions have this order.
  int64_t innermostSize(std::vector<size_t> order) const {
    std::erase_if(order, [&](size_t d) { return isOne(unit_.space.sizes[d]); });
    SymExpr size = 1;
    for (size_t i = order.size(); i-- > 0;) {
      if (i + 1 < order.size() && !stepsAlike(order[i], order[i + 1])) break;
      size = size * unit_.space.sizes[order[i]];
    }
    return compiler::estimate(size, graph_.hints);
  }

  bool stepsAlike(size_t outer, size_t inner) const {
    return std::ranges::all_of(spaceStrides_, [&](const Dims& strides) {
      return sameValue(strides[outer], strides[inner] * unit_.space.sizes[inner]);
    });
  }

  // Merges neighbouring dimensions that every operand steps through like one dimension, and drops dimensions of size 1.
  // Fixed columns never merge with rows.
  Loops collapse() {
    std::vector<Dims> loops;  // per loop: its size, then every operand's stride
    size_t numOuterLoops = 0;
    size_t previous = 0;
    std::vector<size_t> order = loopOrder();
    for (size_t i = 0; i < order.size(); ++i) {
      size_t dim = order[i];
      bool isFirstColumn = unit_.space.numColumnDims > 0 && i == unit_.space.numOuterDims();
      if (isFirstColumn) numOuterLoops = loops.size();
      if (isOne(unit_.space.sizes[dim])) continue;
      bool mayMerge = !loops.empty() && !(unit_.space.numColumnDims > 0 && i >= unit_.space.numOuterDims() &&
                                          loops.size() == numOuterLoops);
      SymExpr size = unit_.space.sizes[dim];
      if (mayMerge && stepsAlike(previous, dim)) {
        size = loops.back()[0] * size;
        loops.pop_back();
      }
      Dims loop = {size};
      for (const Dims& strides : spaceStrides_) loop.push_back(strides[dim]);
      loops.push_back(std::move(loop));
      previous = dim;
    }
    return assignStrides(loops, unit_.space.numColumnDims > 0 ? numOuterLoops : loops.empty() ? 0 : loops.size() - 1);
  }

  Loops assignStrides(const std::vector<Dims>& loops, size_t numOuter) {
    AG_CHECK(loops.size() <= numOuter + 1, "the columns of a kernel must collapse into one loop");
    Loops result;
    for (Operand& operand : operands_) operand.strides.clear();
    for (size_t i = 0; i < loops.size(); ++i) {
      (i < numOuter ? result.outer.emplace_back() : result.columns) = loops[i][0];
      for (size_t j = 0; j < operands_.size(); ++j) operands_[j].strides.push_back(loops[i][j + 1]);
    }
    if (unit_.space.numColumnDims > 0 && numOuter == 0) {
      result.outer.push_back(1);
      for (Operand& operand : operands_) operand.strides.insert(operand.strides.begin(), SymExpr(0));
    }
    for (Operand& operand : operands_) {
      if (operand.strides.size() == result.outer.size()) operand.strides.push_back(0);
      bool isSingle = isOne(result.columns) && operand.isOutput && !operand.isRow;
      if (isSingle) operand.strides.back() = 1;
      if (operand.isBlock) operand.strides.front() = result.columns;
    }
    return result;
  }

  // Whether rows of transposed operands are copied through tiles.
  bool hasTiles(const Loops& loops) const {
    return graph_.device.isHost() && !loops.outer.empty() && loops.columns.isConstant() &&
           loops.columns.constant() <= compiler::kMostTransposedColumns &&
           compiler::estimate(loops.outer.back(), graph_.hints) >= kTileRows;
  }

  ClusterOperand::Columns columnsOf(const Operand& operand, const Loops& loops, int64_t& tileBytes) const {
    if (isOne(operand.strides.back())) return ClusterOperand::Columns::kContiguous;
    const bool hasNeighbours = operand.strides.size() > 1 && isOne(operand.strides[operand.strides.size() - 2]);
    if (!hasNeighbours || !hasTiles(loops)) return ClusterOperand::Columns::kStrided;
    const auto width = static_cast<int64_t>(sizeInBytes(graph_.typeOf(operand.value).dtype));
    const int64_t bytes = kTileRows * loops.columns.constant() * width;
    if (tileBytes + bytes > kMostTileBytes) return ClusterOperand::Columns::kStrided;
    tileBytes += bytes;
    return ClusterOperand::Columns::kTransposed;
  }

  void declareOperands(const Loops& loops) {
    int64_t tileBytes = 0;
    for (const Operand& operand : operands_) {
      const SymExpr& stride = operand.strides.back();
      ClusterOperand declared;
      declared.dtype = graph_.typeOf(operand.value).dtype;
      declared.isOutput = operand.isOutput;
      declared.isPerRow = operand.isOutput ? operand.isRow : isZero(stride);
      declared.isPerBlock = operand.isBlock;
      declared.columns = declared.isPerRow ? ClusterOperand::Columns::kBroadcast : columnsOf(operand, loops, tileBytes);
      result_.cluster.operands.push_back(declared);
    }
  }

  // --- nodes ---

  int32_t add(ClusterNode node) {
    result_.cluster.nodes.push_back(std::move(node));
    return static_cast<int32_t>(result_.cluster.nodes.size() - 1);
  }

  int32_t emitInput(ValueId input, const Node& reader) {
    Access access = resolver_.resolve(input, sizesOf(reader), unit_.space.rank());
    if (auto made = nodeOf_.find(access.root); made != nodeOf_.end()) return made->second;
    if (isInlined(resolver_, access.root)) {
      const Node& constant = graph_.nodes[resolver_.producerOf(access.root)];
      return nodeOf_[access.root] = emitConstant(constant);
    }
    size_t index = loadOperand(access);
    Operand& operand = operands_[index];
    if (operand.loadNode >= 0) return operand.loadNode;
    const ClusterOperand& declared = result_.cluster.operands[index];
    ClusterNode load = makeNode(PointwiseOp::kLoad, declared.dtype);
    load.operand = static_cast<int32_t>(index);
    load.isPerRow = declared.isPerRow;
    return operand.loadNode = add(std::move(load));
  }

  int32_t emitConstant(const Node& node) {
    ClusterNode constant = makeNode(PointwiseOp::kConstant, graph_.typeOf(node.results[0]).dtype);
    constant.constant = node.constant;
    constant.isPerRow = true;
    return add(std::move(constant));
  }

  void emitNode(const Node& node) {
    if (node.kind == NodeKind::kPointwise && node.op == PointwiseOp::kConstant) {
      if (!nodeOf_.contains(node.results[0])) nodeOf_[node.results[0]] = emitConstant(node);
      return;
    }
    ClusterNode emitted = makeNode(node.op, graph_.typeOf(node.results[0]).dtype);
    emitted.isPerRow = true;
    for (ValueId input : node.inputs) {
      emitted.inputs.push_back(emitInput(input, node));
      emitted.isPerRow &= result_.cluster.nodes[emitted.inputs.back()].isPerRow;
    }
    bool isReduce = node.kind == NodeKind::kReduce;
    bool isSum = node.op == PointwiseOp::kSumRows;
    if ((isReduce || isSum) && emitted.isPerRow) emitted.inputs[0] = spread(emitted.inputs[0]);
    emitted.isPerRow = !isSum && (emitted.isPerRow || isReduce);
    nodeOf_[node.results[0]] = add(std::move(emitted));
  }

  // Adds an element node that has the value of a row node in every column.
  int32_t spread(int32_t rowNode) {
    ClusterNode copy = makeNode(PointwiseOp::kCast, result_.cluster.nodes[rowNode].dtype);
    copy.inputs = {rowNode};
    return add(std::move(copy));
  }

  void emitStores() {
    for (size_t i = 0; i < operands_.size(); ++i) {
      if (!operands_[i].isOutput) continue;
      int32_t node = nodeOf_.at(operands_[i].value);
      bool needsSpread = result_.cluster.nodes[node].isPerRow && !operands_[i].isRow;
      if (needsSpread) node = spread(node);
      result_.cluster.stores.push_back({node, static_cast<int32_t>(i)});
    }
  }

  // --- launch ---

  void describeLaunch(const Loops& loops) {
    Node& launch = result_.launch;
    launch.kind = NodeKind::kKernel;
    launch.integers = loops.outer;
    launch.integers.push_back(loops.columns);
    for (const Operand& operand : operands_) {
      (operand.isOutput ? launch.results : launch.inputs).push_back(operand.value);
      launch.integers.insert(launch.integers.end(), operand.strides.begin(), operand.strides.end());
      launch.offsets.push_back(operand.offset);
    }
    if (std::ranges::all_of(launch.offsets, isZero)) launch.offsets.clear();
    for (int32_t node : unit_.nodes) launch.origin = compiler::joinOrigins(launch.origin, graph_.nodes[node].origin);
    int64_t grain = std::max(kMinGrainElements, kGrainWork / static_cast<int64_t>(result_.cluster.nodes.size()));
    launch.extent = loops.outer.empty() ? loops.columns : compiler::numElements(loops.outer);
    launch.grain = loops.outer.empty() ? SymExpr(grain) : max(1, floorDiv(grain, max(1, loops.columns)));
    if (result_.cluster.sumsRows()) describeBlocks();
  }

  // Makes the launch count blocks instead of rows, and adds the rows per block to its integers.
  void describeBlocks() {
    auto isSum = [&](int32_t index) { return graph_.nodes[index].op == PointwiseOp::kSumRows; };
    const SymExpr& declared = graph_.nodes[*std::ranges::find_if(unit_.nodes, isSum)].blockRows;
    Node& launch = result_.launch;
    SymExpr rows = isZero(declared) ? launch.extent : declared;
    launch.integers.push_back(rows);
    launch.extent = isZero(declared) ? SymExpr(1) : floorDiv(launch.extent + rows - 1, rows);
    launch.grain = max(1, floorDiv(launch.grain, max(1, rows)));
  }

  const AccessResolver& resolver_;
  const Graph& graph_;
  const FusionUnit& unit_;
  const std::vector<bool>& isNeeded_;
  std::vector<Operand> operands_;
  std::vector<Dims> spaceStrides_;  // by operand, over the space's dimensions
  std::map<ValueId, int32_t> nodeOf_;
  BuiltKernel result_;
};

}  // namespace

BuiltKernel buildKernel(const AccessResolver& resolver, const FusionUnit& unit, const std::vector<bool>& isNeeded) {
  return KernelBuilder(resolver, unit, isNeeded).build();
}

}  // namespace agspeed::passes
