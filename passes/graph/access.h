// SPDX-License-Identifier: Apache-2.0
// Access: how a fused node reads a value: which memory (the root behind views) and with which stride in every dimension
// of the iteration space. Also the two shapes of nodes in a space.
//
// A space is the sizes of the element-wise loop; its last `numColumnDims` dimensions are the columns that reductions
// run over (0: not fixed yet). A node's dimensions line up with the space's from the left:
//   space [B,T,C], 1 column dim:   element [B,T,C]   row [B,T] or [B,T,1]
#pragma once

#include <optional>
#include <vector>

#include "compiler/graph/graph.h"

namespace agspeed::passes {

struct Space {
  compiler::Dims sizes;
  size_t numColumnDims = 0;

  size_t rank() const { return sizes.size(); }
  size_t numOuterDims() const { return rank() - numColumnDims; }
};

enum class ShapeClass : uint8_t { kElement, kRow };

/// Nullopt: nodes of these sizes have no place in the space.
std::optional<ShapeClass> classify(const compiler::Dims& sizes, const Space& space);
/// The smallest number of trailing dims of `sizes` whose reduction gives the shape `row`; nullopt when none does.
std::optional<size_t> columnDimsBetween(const compiler::Dims& sizes, const compiler::Dims& row);

struct Access {
  compiler::ValueId root = compiler::kNoValue;
  std::vector<int32_t> rootDims;  ///< per space dimension: the root's dimension that moves with it, or -1
  compiler::Dims strides;         ///< per space dimension, in elements
};

/// Finds what is behind views. Borrows the graph.
class AccessResolver {
 public:
  explicit AccessResolver(const compiler::Graph& graph) : graph_(graph), producers_(compiler::producersOf(graph)) {}

  /// The value behind the views that `value` is made of.
  compiler::ValueId rootOf(compiler::ValueId value) const;
  /// How a node with result sizes `sizes`, placed in a space of the given rank, reads `value`.
  Access resolve(compiler::ValueId value, const compiler::Dims& sizes, size_t spaceRank) const;
  /// Index of the producing node, or -1.
  int32_t producerOf(compiler::ValueId value) const { return producers_[value]; }
  const compiler::Graph& graph() const { return graph_; }

 private:
  const compiler::Node* viewBehind(compiler::ValueId value) const;

  const compiler::Graph& graph_;
  std::vector<int32_t> producers_;
};

/// True when element strides over the space's column dimensions step like one dimension (or do not move at all).
bool hasUniformColumns(const compiler::Dims& strides, const Space& space);
/// Strides of a value of the given type over a space: the dimensions line up from the left.
compiler::Dims stridesInSpace(const compiler::TensorType& type, size_t spaceRank);

}  // namespace agspeed::passes
