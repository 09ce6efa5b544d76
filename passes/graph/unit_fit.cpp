// SPDX-License-Identifier: Apache-2.0
#include "passes/graph/unit_fit.h"

namespace agspeed::passes {

using compiler::Dims;
using compiler::isOne;
using compiler::Node;
using compiler::NodeKind;
using compiler::PointwiseOp;
using compiler::ValueId;

namespace {

// Whether each point of the iteration reads the element that belongs to this point. A value that the kernel computes
// itself can only be read this way.
bool readsInPlace(const AccessResolver& resolver, const Access& access, const Space& space) {
  if (!compiler::isZero(access.offset)) return false;
  const Dims& sizes = resolver.graph().typeOf(access.root).sizes;
  for (size_t d = 0; d < space.rank(); ++d) {
    bool isAbsent = d >= sizes.size() || isOne(sizes[d]);
    if (access.rootDims[d] != (isAbsent ? -1 : static_cast<int32_t>(d))) return false;
  }
  return true;
}

}  // namespace

bool isFusible(const Node& node) { return node.kind == NodeKind::kPointwise || node.kind == NodeKind::kReduce; }

bool isInlined(const AccessResolver& resolver, ValueId value) {
  int32_t producer = resolver.producerOf(value);
  if (producer < 0) return false;
  const Node& node = resolver.graph().nodes[producer];
  return node.kind == NodeKind::kPointwise && node.op == PointwiseOp::kConstant;
}

bool sumsRows(const Node& node) { return node.kind == NodeKind::kReduce && node.op == PointwiseOp::kSumRows; }

bool fitsNode(const AccessResolver& resolver, int32_t index, const Space& space, const std::set<int32_t>& members) {
  const compiler::Graph& graph = resolver.graph();
  const Node& node = graph.nodes[index];
  bool isReduce = node.kind == NodeKind::kReduce;
  const Dims& sizes = graph.typeOf(isReduce ? node.inputs[0] : node.results[0]).sizes;
  std::optional<ShapeClass> shape = classify(sizes, space);
  if (!shape || (isReduce && shape != ShapeClass::kElement)) return false;
  for (ValueId input : node.inputs) {
    Access access = resolver.resolve(input, sizes, space.rank());
    if (isInlined(resolver, access.root)) continue;
    int32_t producer = resolver.producerOf(access.root);
    bool isInside = members.contains(producer);
    // A sum over rows is complete only at the end of its kernel, so no node of this kernel can read it.
    if (isInside && sumsRows(graph.nodes[producer])) return false;
    if (isInside ? !readsInPlace(resolver, access, space) : !hasUniformColumns(access.strides, space)) return false;
  }
  if (sumsRows(node)) return true;
  const compiler::TensorType& result = graph.typeOf(node.results[0]);
  return hasUniformColumns(stridesInSpace(result, space.rank()), space);
}

}  // namespace agspeed::passes
