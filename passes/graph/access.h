// SPDX-License-Identifier: Apache-2.0
// Access: how a fused node reads a value. It names the memory (the root value behind views) and the stride in every
// dimension of the iteration space. This file also defines the two shapes that a node can have in a space.
//
// A space holds the sizes of the element-wise loop. Its last `numColumnDims` dimensions are the columns: the dimensions
// that reductions run over, or that a sum over rows keeps. 0 means that the columns are not fixed yet. A node's
// dimensions line up with the dimensions of the space from the left:
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

/// The shape that nodes of these sizes have in the space; nullopt if the space cannot hold them.
std::optional<ShapeClass> classify(const compiler::Dims& sizes, const Space& space);
/// The smallest number of trailing dimensions of `sizes` whose reduction gives the shape `row`; nullopt if no number
/// does.
std::optional<size_t> columnDimsBetween(const compiler::Dims& sizes, const compiler::Dims& row);

/// The root's dimension that a dimension of the space runs along is not known, because a view regroups dimensions.
constexpr int32_t kRegrouped = -2;

struct Access {
  compiler::ValueId root = compiler::kNoValue;
  std::vector<int32_t> rootDims;  ///< per space dimension: the root's dimension that it runs along, -1 or kRegrouped
  compiler::Dims strides;         ///< per space dimension, in elements
  SymExpr offset;                 ///< of the first element that is read, from the root's first one
};

/// Finds the values behind views, and the places of parts. Borrows the graph.
class AccessResolver {
 public:
  explicit AccessResolver(const compiler::Graph& graph)
      : graph_(graph), producers_(compiler::producersOf(graph)), joins_(compiler::joinsOf(graph)) {}

  /// The value behind the chain of views that ends in `value`; `value` itself if it is not a view.
  compiler::ValueId rootOf(compiler::ValueId value) const;
  /// The elements between the first ones of rootOf(value) and of `value`.
  SymExpr offsetOf(compiler::ValueId value) const;
  /// Like offsetOf, for a value that a kernel writes: the elements before a part in the joined tensor, otherwise 0.
  SymExpr partOffsetOf(compiler::ValueId value) const;
  /// How a node with result sizes `sizes`, placed in a space of the given rank, reads `value`.
  Access resolve(compiler::ValueId value, const compiler::Dims& sizes, size_t spaceRank) const;
  /// Index of the node that produces the value, or -1 if there is none.
  int32_t producerOf(compiler::ValueId value) const { return producers_[value]; }
  const compiler::Graph& graph() const { return graph_; }

 private:
  const compiler::Node* viewBehind(compiler::ValueId value) const;

  const compiler::Graph& graph_;
  std::vector<int32_t> producers_;
  std::vector<int32_t> joins_;
};

/// Whether `strides` step through the column dimensions of the space like one dimension, or are all 0 there.
bool hasUniformColumns(const compiler::Dims& strides, const Space& space);
/// Strides of a value of the given type in the dimensions of a space. The dimensions line up from the left.
compiler::Dims stridesInSpace(const compiler::TensorType& type, size_t spaceRank);

}  // namespace agspeed::passes
