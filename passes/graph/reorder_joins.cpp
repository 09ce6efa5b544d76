// SPDX-License-Identifier: Apache-2.0
// reorder-joins: lets kernels write parts in the order in which a copy of the joined tensor has them.
//   %d = join %q at [0], %k at [8] : f32[2,4,2];  %v = permute %d : f32[4,2,2]{2,8,1};  %c = cast %v : f32[4,2,2]
//   ->   %c = join %q at [0], %k at [2] : f32[4,2,2]      the parts have the strides of %c
// A copy into a part of another join becomes parts of that join.
//
// The pass keeps a copy if the joined tensor has another reader, or if a part's place in it does not follow from its
// offset and strides: two dimensions have one stride, or the offset is known only at run time.
#include <algorithm>
#include <numeric>
#include <optional>

#include "passes/graph/passes.h"

namespace agspeed::passes {

using compiler::Dims;
using compiler::Graph;
using compiler::isOne;
using compiler::isZero;
using compiler::kNoValue;
using compiler::Node;
using compiler::NodeKind;
using compiler::PointwiseOp;
using compiler::sameValue;
using compiler::TensorType;
using compiler::ValueId;

namespace {

// The joined tensor behind a copy, and the copy's strides in the order of its dimensions.
struct Source {
  int32_t join = -1;
  std::vector<int32_t> views;
  Dims strides;  // of size 0 where the joined tensor has a dimension of size 1
};

class JoinReorderer {
 public:
  explicit JoinReorderer(const Graph& graph)
      : graph_(graph), producers_(compiler::producersOf(graph)), joins_(compiler::joinsOf(graph)) {
    isDropped_.assign(graph.nodes.size(), false);
    numUses_.assign(graph.values.size(), 0);
    for (const Node& node : graph.nodes) {
      for (ValueId input : node.inputs) ++numUses_[input];
    }
    for (ValueId output : graph.outputs) {
      if (output != kNoValue) ++numUses_[output];
    }
  }

  Graph run() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) reorder(static_cast<int32_t>(i));
    Graph result = graph_;
    result.nodes.clear();
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (!isDropped_[i]) result.nodes.push_back(std::move(graph_.nodes[i]));
    }
    return result;
  }

 private:
  // Finds the join behind a copy and the views between them.
  std::optional<Source> sourceOf(const Node& copy) const {
    if (copy.kind != NodeKind::kPointwise || copy.op != PointwiseOp::kCast) return std::nullopt;
    const TensorType& type = graph_.typeOf(copy.results[0]);
    ValueId value = copy.inputs[0];
    if (!compiler::sameDims(graph_.typeOf(value).sizes, type.sizes) || graph_.typeOf(value).dtype != type.dtype) {
      return std::nullopt;
    }
    std::vector<int32_t> dims(type.rank());  // by dimension of the copy: the dimension of `value`
    std::iota(dims.begin(), dims.end(), 0);
    Source source;
    while (producers_[value] >= 0 && numUses_[value] == 1) {
      const Node& node = graph_.nodes[producers_[value]];
      if (node.kind == NodeKind::kJoin) {
        source.join = producers_[value];
        return placeDims(dims, copy, source) ? std::optional(source) : std::nullopt;
      }
      if (!node.viewDims || !isZero(*node.viewOffset)) return std::nullopt;
      source.views.push_back(producers_[value]);
      for (int32_t& dim : dims) dim = dim < 0 ? -1 : (*node.viewDims)[dim];
      value = node.inputs[0];
    }
    return std::nullopt;
  }

  // Fills in the strides. The dimensions with more than one element of the joined tensor and of the copy have to be the
  // same ones.
  bool placeDims(const std::vector<int32_t>& dims, const Node& copy, Source& source) const {
    const TensorType& type = graph_.typeOf(copy.results[0]);
    const TensorType& joined = graph_.typeOf(graph_.nodes[source.join].results[0]);
    source.strides.assign(joined.rank(), SymExpr(0));
    for (size_t i = 0; i < type.rank(); ++i) {
      if (dims[i] < 0 && !isOne(type.sizes[i])) return false;
    }
    for (size_t i = 0; i < joined.rank(); ++i) {
      if (isOne(joined.sizes[i])) continue;
      auto own = std::ranges::find(dims, static_cast<int32_t>(i));
      if (own == dims.end()) return false;
      auto dim = static_cast<size_t>(own - dims.begin());
      if (!sameValue(type.sizes[dim], joined.sizes[i])) return false;
      source.strides[i] = type.strides[dim];
    }
    return true;
  }

  // The dimension of the joined tensor that a dimension of a part with this stride runs along.
  static std::optional<size_t> dimOf(const TensorType& joined, const SymExpr& stride) {
    std::optional<size_t> found;
    for (size_t i = 0; i < joined.rank(); ++i) {
      if (isOne(joined.sizes[i]) || !sameValue(joined.strides[i], stride)) continue;
      if (found) return std::nullopt;
      found = i;
    }
    return found;
  }

  // The offset of the same element among other strides. Requires: the joined tensor is contiguous.
  static std::optional<SymExpr> moved(const SymExpr& offset, const TensorType& joined, const Dims& strides) {
    if (isZero(offset)) return offset;
    if (!offset.isConstant()) return std::nullopt;
    int64_t rest = offset.constant();
    SymExpr result = 0;
    for (size_t i = 0; i < joined.rank(); ++i) {
      if (isOne(joined.sizes[i])) continue;
      if (!joined.strides[i].isConstant()) return std::nullopt;
      result = result + rest / joined.strides[i].constant() * strides[i];
      rest %= joined.strides[i].constant();
    }
    return rest == 0 ? std::optional(result) : std::nullopt;
  }

  // The part's strides and offset in the copy's memory.
  std::optional<std::pair<Dims, SymExpr>> placeOf(const Source& source, size_t part) const {
    const Node& join = graph_.nodes[source.join];
    const TensorType& joined = graph_.typeOf(join.results[0]);
    const TensorType& type = graph_.typeOf(join.inputs[part]);
    Dims strides = type.strides;
    for (size_t i = 0; i < type.rank(); ++i) {
      if (isOne(type.sizes[i])) continue;
      std::optional<size_t> dim = dimOf(joined, type.strides[i]);
      if (!dim) return std::nullopt;
      strides[i] = source.strides[*dim];
    }
    std::optional<SymExpr> offset = moved(join.offsets[part], joined, source.strides);
    return offset ? std::optional(std::pair(std::move(strides), *offset)) : std::nullopt;
  }

  void reorder(int32_t index) {
    std::optional<Source> source = sourceOf(graph_.nodes[index]);
    if (!source || !compiler::isContiguous(graph_.typeOf(graph_.nodes[source->join].results[0]))) return;
    Node joined = graph_.nodes[source->join];
    std::vector<Dims> strides;
    for (size_t part = 0; part < joined.inputs.size(); ++part) {
      auto place = placeOf(*source, part);
      if (!place) return;
      strides.push_back(std::move(place->first));
      joined.offsets[part] = std::move(place->second);
    }
    for (size_t part = 0; part < joined.inputs.size(); ++part) {
      graph_.values[joined.inputs[part]].type.strides = std::move(strides[part]);
    }
    isDropped_[source->join] = true;
    for (int32_t view : source->views) isDropped_[view] = true;
    joined.origin = compiler::joinOrigins(joined.origin, graph_.nodes[index].origin);
    joined.results = graph_.nodes[index].results;
    replaceCopy(index, std::move(joined));
  }

  void replaceCopy(int32_t index, Node joined) {
    const int32_t outer = joins_[joined.results[0]];
    for (ValueId part : joined.inputs) joins_[part] = outer < 0 ? index : outer;
    if (outer < 0) {
      graph_.nodes[index] = std::move(joined);
      return;
    }
    isDropped_[index] = true;
    Node& join = graph_.nodes[outer];
    auto place = std::ranges::find(join.inputs, joined.results[0]) - join.inputs.begin();
    const SymExpr base = join.offsets[static_cast<size_t>(place)];
    for (SymExpr& offset : joined.offsets) offset = offset + base;
    join.inputs.erase(join.inputs.begin() + place);
    join.offsets.erase(join.offsets.begin() + place);
    join.inputs.insert(join.inputs.end(), joined.inputs.begin(), joined.inputs.end());
    join.offsets.insert(join.offsets.end(), joined.offsets.begin(), joined.offsets.end());
  }

  Graph graph_;
  std::vector<int32_t> producers_;
  std::vector<int32_t> joins_;
  std::vector<int> numUses_;
  std::vector<bool> isDropped_;
};

}  // namespace

Graph reorderJoins(const Graph& graph) { return JoinReorderer(graph).run(); }

}  // namespace agspeed::passes
