// SPDX-License-Identifier: Apache-2.0
// turn-images: computes images in channels-last layout as [N, ..., C], in the order of their memory.
//
//   %y = relu %x : f32[2,16,8,8]{1024,1,128,16}
//
//   %a = permute %x : f32[2,8,8,16]
//   %b = relu %a : f32[2,8,8,16]
//   %y = permute %b : f32[2,16,8,8]{1024,1,128,16}
//
// Sums over the pixels of each channel, as batch norm has them, are sums over rows of [N, ..., C]. So they can share a
// kernel with the work around them. Parts of a joined tensor are turned together with their join. A node with another
// layout is turned if only turned nodes read it, for example a copy. Its result then needs no layout of its own.
//
// The pass keeps other nodes whose results have another layout, constants, and joins with parts that are no
// element-wise nodes.
#include <algorithm>
#include <map>
#include <numeric>

#include "passes/graph/passes.h"

namespace agspeed::passes {

using compiler::Argument;
using compiler::Graph;
using compiler::Node;
using compiler::NodeKind;
using compiler::PointwiseOp;
using compiler::TensorType;
using compiler::ValueId;

namespace {

constexpr size_t kFewestDims = 4;
constexpr size_t kMostDims = 5;

class ImageTurner {
 public:
  explicit ImageTurner(const Graph& graph)
      : graph_(graph),
        producers_(compiler::producersOf(graph)),
        joins_(compiler::joinsOf(graph)),
        users_(compiler::usersOf(graph)),
        isOutput_(compiler::outputMask(graph)),
        isTurned_(graph.nodes.size(), false),
        result_(graph) {
    result_.nodes.clear();
  }

  Graph run() {
    for (size_t i = graph_.nodes.size(); i-- > 0;) isTurned_[i] = turns(graph_.nodes[i]);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (isTurned_[i]) {
        turn(graph_.nodes[i]);
      } else {
        result_.nodes.push_back(graph_.nodes[i]);
      }
    }
    return std::move(result_);
  }

 private:
  static bool isImage(const TensorType& type) { return type.rank() >= kFewestDims && type.rank() <= kMostDims; }

  static bool hasChannelsLast(const TensorType& type) {
    return isImage(type) && compiler::isChannelsLast(type) && !compiler::isContiguous(type);
  }

  // Requires: isTurned_ is known for all later nodes.
  bool turns(const Node& node) const {
    if (node.kind == NodeKind::kJoin) {
      const auto isPointwise = [this](ValueId part) {
        return graph_.nodes[producers_[part]].kind == NodeKind::kPointwise;
      };
      return hasChannelsLast(graph_.typeOf(node.results[0])) && std::ranges::all_of(node.inputs, isPointwise);
    }
    if (node.kind != NodeKind::kPointwise) return false;
    const ValueId value = node.results[0];
    if (joins_[value] >= 0) return isTurned_[joins_[value]];
    if (node.op == PointwiseOp::kConstant) return false;
    return hasChannelsLast(graph_.typeOf(value)) || hasTurnedReadersOnly(value);
  }

  bool hasTurnedReadersOnly(ValueId value) const {
    const TensorType& type = graph_.typeOf(value);
    const auto isAlike = [&](int32_t user) {
      return isTurned_[user] && compiler::sameDims(graph_.typeOf(graph_.nodes[user].results[0]).sizes, type.sizes);
    };
    return isImage(type) && !isOutput_[value] && !users_[value].empty() && std::ranges::all_of(users_[value], isAlike);
  }

  void turn(Node node) {
    const ValueId value = node.results[0];
    const TensorType& type = graph_.typeOf(value);
    const size_t rank = type.rank();
    for (ValueId& input : node.inputs) input = turned(input, rank);
    const bool isPart = joins_[value] >= 0;
    const bool hasView = !isPart && hasChannelsLast(type);
    TensorType own = compiler::channelsToEnd(type);
    if (!isPart && !hasView) own = compiler::contiguousType(own.dtype, own.sizes);
    node.results[0] = result_.addTemporary(graph_.values[value].name, std::move(own));
    turned_[{value, rank}] = node.results[0];
    result_.nodes.push_back(node);
    if (hasView) view("aten.permute.default", node.results[0], value, backToFront(rank), node.origin);
  }

  // The value as [N, ..., C], lined up with `rank` dimensions as broadcasting does it.
  ValueId turned(ValueId value, size_t rank) {
    TensorType type = result_.typeOf(value);
    if (type.rank() == 0) return value;
    const auto [found, isNew] = turned_.try_emplace({value, rank}, value);
    if (!isNew) return found->second;
    const std::string name = result_.values[value].name;
    const std::string origin = producers_[value] < 0 ? "" : graph_.nodes[producers_[value]].origin;
    ValueId source = value;
    if (const size_t numNew = rank - type.rank(); numNew > 0) {
      std::vector<int32_t> dims(rank, -1);
      std::iota(dims.begin() + static_cast<std::ptrdiff_t>(numNew), dims.end(), 0);
      for (compiler::Dims* list : {&type.sizes, &type.strides}) list->insert(list->begin(), numNew, SymExpr(1));
      source = result_.addTemporary(name, type);
      view("aten.view.default", value, source, dims, origin);
    }
    std::vector<int32_t> dims(rank);
    std::iota(dims.begin(), dims.end(), 0);
    std::rotate(dims.begin() + 1, dims.begin() + 2, dims.end());
    found->second = result_.addTemporary(name, compiler::channelsToEnd(type));
    view("aten.permute.default", source, found->second, dims, origin);
    return found->second;
  }

  static std::vector<int32_t> backToFront(size_t rank) {
    std::vector<int32_t> dims(rank);
    std::iota(dims.begin(), dims.end(), 0);
    std::rotate(dims.begin() + 1, dims.end() - 1, dims.end());
    return dims;
  }

  // Adds a view of `source` as `result`. `dims`: for each dimension of the result the one of the source, or -1.
  void view(const char* target, ValueId source, ValueId result, std::vector<int32_t> dims, const std::string& origin) {
    Argument list = Argument::ofList({});
    const bool isPermuted = dims.size() == result_.typeOf(source).rank();
    for (size_t i = 0; i < dims.size(); ++i) {
      list.items.push_back(Argument::ofInteger(isPermuted ? SymExpr(dims[i]) : result_.typeOf(result).sizes[i]));
    }
    Node node;
    node.kind = NodeKind::kCall;
    node.target = target;
    node.inputs = {source};
    node.results = {result};
    node.arguments = {Argument::ofInput(0), std::move(list)};
    node.origin = origin;
    node.effects.mayAlias = true;
    node.reason = "a call or an output needs the view";
    node.viewOffset = 0;
    node.viewDims = std::move(dims);
    result_.nodes.push_back(std::move(node));
  }

  const Graph& graph_;
  std::vector<int32_t> producers_;
  std::vector<int32_t> joins_;
  std::vector<std::vector<int32_t>> users_;
  std::vector<bool> isOutput_;
  std::vector<bool> isTurned_;  // by node
  Graph result_;
  std::map<std::pair<ValueId, size_t>, ValueId> turned_;  // by value and rank
};

}  // namespace

Graph turnImages(const Graph& graph) { return ImageTurner(graph).run(); }

}  // namespace agspeed::passes
