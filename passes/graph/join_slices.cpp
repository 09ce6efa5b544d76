// SPDX-License-Identifier: Apache-2.0
// join-slices: lets kernels write the gradients of slices and selections to their places in one tensor. Torch fills a
// tensor with zeros for each slice, and adds these tensors up.
//   %a = slice_backward(%g, columns 0 to 2 of [4,6]);  %b = slice_backward(%h, columns 2 to 6 of [4,6])
//   %c = add %a, %b   ->   %c = join %g' at [0], %h' at [2]      with %g' = %g + 0 and %h' = %h + 0
//
// The pieces of a tree of additions divide the dimension into segments. All positions of a segment belong to the same
// pieces. Each segment becomes a part: the sum of its pieces in the tree's order, or zeros if there are none. Parts add
// 0 if torch adds zeros there, because -0 + 0 is 0; so the results have the same bits as torch's.
//
// The pass keeps calls whose gradient is mutated, trees whose pieces are slices of different dimensions, and segments
// of which there are too many.
#include <algorithm>
#include <optional>

#include "passes/graph/dependencies.h"
#include "passes/graph/passes.h"

namespace agspeed::passes {

using compiler::Argument;
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

// A segment costs a launch.
constexpr size_t kMostSegments = 64;
constexpr int64_t kLongestDimension = 1 << 16;

// Positions of a dimension: begin, begin + step, ... The gradient of a slice, or of a selection, which lacks the
// dimension, belongs to such positions.
struct Piece {
  ValueId gradient = kNoValue;
  size_t dim = 0;
  SymExpr begin = 0;
  SymExpr count = 1;
  int64_t step = 1;
  bool isSelection = false;

  SymExpr end() const { return step == 1 ? begin + count : begin + (count - 1) * step + 1; }
  bool isConstant() const { return begin.isConstant() && count.isConstant(); }
};

struct Segment {
  SymExpr begin;
  SymExpr count;
  int64_t step = 1;
  std::vector<int32_t> pieces;  // sorted
};

std::optional<int64_t> constantAt(const Node& node, size_t index) {
  if (index >= node.arguments.size()) return std::nullopt;
  const Argument& argument = node.arguments[index];
  bool isConstant = argument.kind == Argument::Kind::kInteger && argument.name.empty() && argument.integer.isConstant();
  return isConstant ? std::optional(argument.integer.constant()) : std::nullopt;
}

std::optional<Piece> pieceOf(const Graph& graph, const Node& node) {
  bool isSlice = node.target == "aten.slice_backward.default";
  bool isSelection = node.target == "aten.select_backward.default";
  if (node.kind != NodeKind::kCall || !(isSlice || isSelection) || node.inputs.size() != 1) return std::nullopt;
  const TensorType& type = graph.typeOf(node.results[0]);
  std::optional<int64_t> dim = constantAt(node, 2);
  if (!dim || node.arguments.size() != (isSlice ? 6u : 4u)) return std::nullopt;
  if (*dim < 0) *dim += static_cast<int64_t>(type.rank());
  if (*dim < 0 || *dim >= static_cast<int64_t>(type.rank())) return std::nullopt;
  const Argument& index = node.arguments[3];
  std::optional<int64_t> step = isSlice ? constantAt(node, 5) : 1;
  if (index.kind != Argument::Kind::kInteger || !step || *step < 1) return std::nullopt;
  Piece piece{.gradient = node.inputs[0], .dim = static_cast<size_t>(*dim), .step = *step, .isSelection = isSelection};
  const TensorType& gradient = graph.typeOf(piece.gradient);
  std::optional<SymExpr> begin = compiler::sliceBegin(index.integer, type.sizes[piece.dim]);
  if (!begin || gradient.dtype != type.dtype || gradient.rank() != type.rank() - (isSelection ? 1 : 0)) {
    return std::nullopt;
  }
  piece.begin = *begin;
  piece.count = isSelection ? SymExpr(1) : gradient.sizes[piece.dim];
  bool isInside = compiler::isNotNegative(type.sizes[piece.dim] - piece.end());
  return isInside && !std::ranges::any_of(gradient.sizes, isZero) ? std::optional(piece) : std::nullopt;
}

// The segments of positions 0 to size - 1 if all positions are constant. Positions that differ by `step` are
// neighbours.
std::vector<Segment> constantSegments(const std::vector<Piece>& pieces, int64_t size, int64_t step) {
  std::vector<std::vector<int32_t>> owners(static_cast<size_t>(size));
  for (size_t i = 0; i < pieces.size(); ++i) {
    int64_t position = pieces[i].begin.constant();
    for (int64_t n = 0; n < pieces[i].count.constant(); ++n, position += pieces[i].step) {
      owners[static_cast<size_t>(position)].push_back(static_cast<int32_t>(i));
    }
  }
  std::vector<Segment> segments;
  for (int64_t first = 0; first < std::min(step, size); ++first) {
    bool isNew = true;
    for (int64_t position = first; position < size; position += step, isNew = false) {
      const std::vector<int32_t>& own = owners[static_cast<size_t>(position)];
      if (isNew || segments.back().pieces != own) {
        segments.push_back({position, 1, step, own});
      } else {
        segments.back().count = segments.back().count + 1;
      }
    }
  }
  return segments;
}

// The segments if some positions are known only at run time; nullopt unless the pieces are known to follow each other.
std::optional<std::vector<Segment>> symbolicSegments(const std::vector<Piece>& pieces, const SymExpr& size) {
  std::vector<int32_t> order;
  for (size_t i = 0; i < pieces.size(); ++i) order.push_back(static_cast<int32_t>(i));
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) {
    const SymExpr distance = pieces[b].begin - pieces[a].begin;
    return compiler::isNotNegative(distance) && !sameValue(distance, 0);
  });
  std::vector<Segment> segments;
  SymExpr next = 0;
  const auto fillUpTo = [&](const SymExpr& end) {
    if (!sameValue(next, end)) segments.push_back({next, end - next, 1, {}});
    return compiler::isNotNegative(end - next);
  };
  for (int32_t index : order) {
    const Piece& piece = pieces[index];
    if (piece.step != 1 || !fillUpTo(piece.begin)) return std::nullopt;
    segments.push_back({piece.begin, piece.count, 1, {index}});
    next = piece.end();
  }
  return fillUpTo(size) ? std::optional(segments) : std::nullopt;
}

std::optional<std::vector<Segment>> segmentsOf(const std::vector<Piece>& pieces, const TensorType& type) {
  const SymExpr& size = type.sizes[pieces[0].dim];
  bool isConstant = size.isConstant() && std::ranges::all_of(pieces, &Piece::isConstant);
  if (std::ranges::any_of(pieces, [&](const Piece& piece) { return piece.dim != pieces[0].dim; })) return std::nullopt;
  if (!isConstant || size.constant() > kLongestDimension) return symbolicSegments(pieces, size);
  int64_t step = std::ranges::max(pieces, {}, &Piece::step).step;
  bool isRegular =
      std::ranges::all_of(pieces, [&](const Piece& piece) { return piece.step == step || isOne(piece.count); });
  std::vector<Segment> segments = constantSegments(pieces, size.constant(), isRegular ? step : 1);
  return segments.size() <= kMostSegments ? std::optional(segments) : std::nullopt;
}

class SliceJoiner {
 public:
  explicit SliceJoiner(const Graph& graph)
      : graph_(graph), result_(graph), producers_(compiler::producersOf(graph)), isMutated_(mutatedMask(graph)) {}

  Graph run() {
    result_.nodes.clear();
    countUses();
    findPieces();
    findTrees();
    for (size_t i = 0; i < graph_.nodes.size(); ++i) rewrite(static_cast<int32_t>(i));
    return std::move(result_);
  }

 private:
  // --- analysis ---

  void countUses() {
    numUses_.assign(graph_.values.size(), 0);
    for (const Node& node : graph_.nodes) {
      for (ValueId input : node.inputs) ++numUses_[input];
    }
    for (ValueId output : graph_.outputs) {
      if (output != kNoValue) ++numUses_[output];
    }
  }

  void findPieces() {
    for (const Node& node : graph_.nodes) {
      std::optional<Piece> piece = pieceOf(graph_, node);
      if (piece && isMutated_[piece->gradient]) piece.reset();
      pieces_.push_back(std::move(piece));
    }
  }

  bool isTerm(ValueId value, const Dims& sizes) const {
    int32_t producer = producers_[value];
    if (producer < 0 || numUses_[value] != 1 || !compiler::sameDims(graph_.typeOf(value).sizes, sizes)) return false;
    return pieces_[producer] || isSum_[producer];
  }

  // Marks additions of pieces and of such additions, and the terms that they use up.
  void findTrees() {
    isSum_.assign(graph_.nodes.size(), false);
    isTaken_.assign(graph_.nodes.size(), false);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.kind != NodeKind::kPointwise || node.op != PointwiseOp::kAdd) continue;
      const Dims& sizes = graph_.typeOf(node.results[0]).sizes;
      isSum_[i] = std::ranges::all_of(node.inputs, [&](ValueId input) { return isTerm(input, sizes); });
      if (isSum_[i] && !segmentsOfTree(static_cast<int32_t>(i))) isSum_[i] = false;
      if (!isSum_[i]) continue;
      for (ValueId input : node.inputs) isTaken_[producers_[input]] = true;
    }
  }

  void collect(int32_t term, std::vector<Piece>& pieces) const {
    if (pieces_[term]) return pieces.push_back(*pieces_[term]);
    for (ValueId input : graph_.nodes[term].inputs) collect(producers_[input], pieces);
  }

  std::optional<std::vector<Segment>> segmentsOfTree(int32_t root) const {
    std::vector<Piece> pieces;
    collect(root, pieces);
    return segmentsOf(pieces, graph_.typeOf(graph_.nodes[root].results[0]));
  }

  std::string originOf(int32_t term) const {
    if (pieces_[term]) return graph_.nodes[term].origin;
    std::string origin;
    for (ValueId input : graph_.nodes[term].inputs) {
      origin = compiler::joinOrigins(origin, originOf(producers_[input]));
    }
    return compiler::joinOrigins(origin, graph_.nodes[term].origin);
  }

  // --- rewriting ---

  void rewrite(int32_t index) {
    if (isTaken_[index]) return;
    std::optional<std::vector<Segment>> segments;
    if (pieces_[index] || isSum_[index]) segments = segmentsOfTree(index);
    if (!segments) {
      result_.nodes.push_back(graph_.nodes[index]);
      return;
    }
    std::vector<Piece> pieces;
    collect(index, pieces);
    origin_ = originOf(index);
    const TensorType type = graph_.typeOf(graph_.nodes[index].results[0]);
    Node join;
    join.kind = NodeKind::kJoin;
    join.origin = origin_;
    join.effects.mayAlias = true;
    join.results = graph_.nodes[index].results;
    for (const Segment& segment : *segments) {
      join.inputs.push_back(addPart(index, pieces, segment, type));
      join.offsets.push_back(segment.begin * type.strides[pieces[0].dim]);
    }
    result_.nodes.push_back(std::move(join));
  }

  ValueId add(PointwiseOp op, std::vector<ValueId> inputs, TensorType type) {
    Node node;
    node.op = op;
    node.inputs = std::move(inputs);
    node.origin = origin_;
    node.results = {result_.addTemporary("part", std::move(type))};
    result_.nodes.push_back(std::move(node));
    return result_.nodes.back().results[0];
  }

  ValueId addView(std::string target, ValueId source, std::vector<SymExpr> integers, TensorType type, SymExpr offset,
                  std::vector<int32_t> dims) {
    Node node;
    node.kind = NodeKind::kCall;
    node.target = std::move(target);
    node.inputs = {source};
    node.arguments = {Argument::ofInput(0)};
    for (SymExpr& integer : integers) node.arguments.push_back(Argument::ofInteger(std::move(integer)));
    node.origin = origin_;
    node.effects.mayAlias = true;
    node.viewOffset = std::move(offset);
    node.viewDims = std::move(dims);
    node.results = {result_.addTemporary("piece", std::move(type))};
    result_.nodes.push_back(std::move(node));
    return result_.nodes.back().results[0];
  }

  // The type of a part. It lacks the dimension if all its pieces are selections, because then it has the shape in which
  // they are computed.
  static TensorType partType(const Segment& segment, bool hasDim, size_t dim, TensorType type) {
    type.sizes[dim] = segment.count;
    type.strides[dim] = type.strides[dim] * segment.step;
    if (hasDim) return type;
    type.sizes.erase(type.sizes.begin() + static_cast<std::ptrdiff_t>(dim));
    type.strides.erase(type.strides.begin() + static_cast<std::ptrdiff_t>(dim));
    return type;
  }

  ValueId addPart(int32_t root, const std::vector<Piece>& pieces, const Segment& segment, const TensorType& type) {
    bool hasDim = segment.pieces.empty() ||
                  std::ranges::any_of(segment.pieces, [&](int32_t piece) { return !pieces[piece].isSelection; });
    const TensorType part = partType(segment, hasDim, pieces[0].dim, type);
    if (segment.pieces.empty()) return add(PointwiseOp::kConstant, {}, part);
    int32_t nextPiece = 0;
    bool addsZeros = false;
    ValueId sum = valueOf(root, pieces, segment, hasDim, nextPiece, addsZeros);
    if (!addsZeros) return add(PointwiseOp::kCast, {sum}, part);
    ValueId zero = add(PointwiseOp::kConstant, {}, compiler::contiguousType(type.dtype, {}));
    return add(PointwiseOp::kAdd, {sum, zero}, part);
  }

  // The sum of a term's pieces in the segment; kNoValue if it has none. `nextPiece` counts the pieces in order.
  ValueId valueOf(int32_t term, const std::vector<Piece>& pieces, const Segment& segment, bool hasDim,
                  int32_t& nextPiece, bool& addsZeros) {
    if (pieces_[term]) {
      int32_t piece = nextPiece++;
      return std::ranges::binary_search(segment.pieces, piece) ? gradientIn(pieces[piece], segment, hasDim) : kNoValue;
    }
    std::vector<ValueId> terms;
    for (ValueId input : graph_.nodes[term].inputs) {
      terms.push_back(valueOf(producers_[input], pieces, segment, hasDim, nextPiece, addsZeros));
    }
    std::erase(terms, kNoValue);
    if (terms.size() == 1) addsZeros = true;
    if (terms.size() < 2) return terms.empty() ? kNoValue : terms[0];
    const TensorType& type = result_.typeOf(terms[0]);
    return add(PointwiseOp::kAdd, terms, compiler::contiguousType(type.dtype, type.sizes));
  }

  // The piece's gradient at the segment's positions, a view if that is not the whole gradient.
  ValueId gradientIn(const Piece& piece, const Segment& segment, bool hasDim) {
    TensorType type = result_.typeOf(piece.gradient);
    std::vector<int32_t> dims;
    for (size_t i = 0; i < type.rank(); ++i) dims.push_back(static_cast<int32_t>(i));
    auto dim = static_cast<std::ptrdiff_t>(piece.dim);
    const SymExpr dimArgument = static_cast<int64_t>(piece.dim);
    if (piece.isSelection) {
      if (!hasDim) return piece.gradient;
      type.sizes.insert(type.sizes.begin() + dim, SymExpr(1));
      type.strides.insert(type.strides.begin() + dim, SymExpr(1));
      dims.insert(dims.begin() + dim, -1);
      return addView("aten.unsqueeze.default", piece.gradient, {dimArgument}, type, 0, dims);
    }
    if (sameValue(segment.count, piece.count)) return piece.gradient;
    const SymExpr begin = floorDiv(segment.begin - piece.begin, piece.step);
    type.sizes[piece.dim] = segment.count;
    SymExpr offset = begin * type.strides[piece.dim];
    return addView("aten.slice.Tensor", piece.gradient, {dimArgument, begin, begin + segment.count, 1}, type, offset,
                   dims);
  }

  const Graph& graph_;
  Graph result_;
  std::vector<int32_t> producers_;
  std::vector<bool> isMutated_;
  std::vector<int> numUses_;
  std::vector<std::optional<Piece>> pieces_;  // by node
  std::vector<bool> isSum_;                   // by node: an addition that becomes a join, or a term of one
  std::vector<bool> isTaken_;                 // by node: a term of a larger tree
  std::string origin_;                        // of the nodes that are being made
};

}  // namespace

Graph joinSlices(const Graph& graph) { return SliceJoiner(graph).run(); }

}  // namespace agspeed::passes
