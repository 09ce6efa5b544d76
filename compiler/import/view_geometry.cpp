// SPDX-License-Identifier: Apache-2.0
#include "compiler/import/view_geometry.h"

#include <algorithm>

#include "compiler/import/op_effects.h"

namespace agspeed::compiler {
namespace {

using ViewDims = std::vector<int32_t>;

// A view that maps dimensions, with the part of each source dimension that it takes.
struct Selection {
  ViewDims dims;
  Dims steps;  // by source dimension: the step of a slice
  SymExpr offset = 0;
  std::optional<int32_t> resized;  // the source dimension that a slice shortens
};

ViewDims identityDims(size_t rank) {
  ViewDims dims(rank);
  for (size_t i = 0; i < rank; ++i) dims[i] = static_cast<int32_t>(i);
  return dims;
}

const Argument* find(const std::vector<Argument>& arguments, size_t index, std::string_view name) {
  if (index < arguments.size() && arguments[index].name.empty()) return &arguments[index];
  auto found = std::ranges::find(arguments, name, &Argument::name);
  return found == arguments.end() ? nullptr : &*found;
}

std::optional<SymExpr> integer(const std::vector<Argument>& arguments, size_t index, std::string_view name,
                               const SymExpr& otherwise) {
  const Argument* argument = find(arguments, index, name);
  if (!argument || argument->kind == Argument::Kind::kNone) return otherwise;
  return argument->kind == Argument::Kind::kInteger ? std::optional(argument->integer) : std::nullopt;
}

std::optional<int32_t> dimension(const std::optional<SymExpr>& value, size_t rank) {
  if (!value || !value->isConstant()) return std::nullopt;
  int64_t dim = value->constant() < 0 ? value->constant() + static_cast<int64_t>(rank) : value->constant();
  return dim >= 0 && dim < static_cast<int64_t>(rank) ? std::optional(static_cast<int32_t>(dim)) : std::nullopt;
}

std::optional<ViewDims> transposeDims(const std::vector<Argument>& arguments, size_t rank) {
  std::optional<int32_t> a = dimension(integer(arguments, 1, "dim0", 0), rank);
  std::optional<int32_t> b = dimension(integer(arguments, 2, "dim1", 0), rank);
  if (!a || !b) return std::nullopt;
  ViewDims dims = identityDims(rank);
  std::swap(dims[*a], dims[*b]);
  return dims;
}

std::optional<ViewDims> permuteDims(const std::vector<Argument>& arguments, size_t rank) {
  const Argument* list = find(arguments, 1, "dims");
  if (!list || list->kind != Argument::Kind::kList) return std::nullopt;
  ViewDims dims;
  for (const Argument& item : list->items) {
    if (item.kind != Argument::Kind::kInteger) return std::nullopt;
    std::optional<int32_t> dim = dimension(item.integer, rank);
    if (!dim) return std::nullopt;
    dims.push_back(*dim);
  }
  return dims;
}

// Result dimensions match source dimensions from the right; new and broadcast ones map to none.
std::optional<ViewDims> expandDims(const TensorType& source, const TensorType& result) {
  if (source.rank() > result.rank()) return std::nullopt;
  size_t numNew = result.rank() - source.rank();
  ViewDims dims(result.rank(), -1);
  for (size_t i = 0; i < source.rank(); ++i) {
    if (!isOne(source.sizes[i])) dims[numNew + i] = static_cast<int32_t>(i);
  }
  return dims;
}

// Pairs the dimensions that are not 1, in order. Fails unless paired sizes are equal.
std::optional<ViewDims> insertOnes(const TensorType& source, const TensorType& result) {
  ViewDims dims(result.rank(), -1);
  size_t next = 0;
  for (size_t i = 0; i < result.rank(); ++i) {
    if (isOne(result.sizes[i])) continue;
    while (next < source.rank() && isOne(source.sizes[next])) ++next;
    if (next == source.rank() || !sameValue(source.sizes[next], result.sizes[i])) return std::nullopt;
    dims[i] = static_cast<int32_t>(next++);
  }
  bool usesAll = std::all_of(source.sizes.begin() + static_cast<std::ptrdiff_t>(next), source.sizes.end(), isOne);
  return usesAll ? std::optional(dims) : std::nullopt;
}

std::optional<Selection> sliceOf(const std::vector<Argument>& arguments, const TensorType& source,
                                 const TensorType& result) {
  std::optional<int32_t> dim = dimension(integer(arguments, 1, "dim", 0), source.rank());
  std::optional<SymExpr> index = integer(arguments, 2, "start", 0);
  std::optional<SymExpr> step = integer(arguments, 4, "step", 1);
  if (!dim || !index || !step || !step->isConstant() || step->constant() < 1) return std::nullopt;
  std::optional<SymExpr> begin = sliceBegin(*index, source.sizes[*dim]);
  if (!begin || result.rank() != source.rank()) return std::nullopt;
  const SymExpr last = *begin + (result.sizes[*dim] - 1) * *step;
  bool isOutside =
      last.isConstant() && source.sizes[*dim].isConstant() && !isNotNegative(source.sizes[*dim] - 1 - last);
  if (isOutside) return std::nullopt;
  Selection slice{identityDims(source.rank()), Dims(source.rank(), SymExpr(1)), *begin * source.strides[*dim], dim};
  slice.steps[*dim] = *step;
  return slice;
}

std::optional<Selection> selectionOf(const std::vector<Argument>& arguments, const TensorType& source) {
  std::optional<int32_t> dim = dimension(integer(arguments, 1, "dim", 0), source.rank());
  std::optional<SymExpr> index = integer(arguments, 2, "index", 0);
  if (!dim || !index) return std::nullopt;
  std::optional<SymExpr> begin = sliceBegin(*index, source.sizes[*dim]);
  if (!begin) return std::nullopt;
  bool isOutside =
      source.sizes[*dim].isConstant() && begin->isConstant() && !isNotNegative(source.sizes[*dim] - 1 - *begin);
  if (isOutside) return std::nullopt;
  Selection selection{identityDims(source.rank()), Dims(source.rank(), SymExpr(1)), *begin * source.strides[*dim], {}};
  selection.dims.erase(selection.dims.begin() + *dim);
  return selection;
}

std::optional<Selection> mapOf(std::string_view name, const std::vector<Argument>& arguments, const TensorType& source,
                               const TensorType& result) {
  if (name == "slice") return sliceOf(arguments, source, result);
  if (name == "select") return selectionOf(arguments, source);
  std::optional<ViewDims> dims;
  if (name == "alias" || name == "detach") dims = identityDims(source.rank());
  if (name == "t") dims = source.rank() == 2 ? ViewDims{1, 0} : identityDims(source.rank());
  if (name == "transpose" || name == "swapaxes") dims = transposeDims(arguments, source.rank());
  if (name == "permute") dims = permuteDims(arguments, source.rank());
  if (name == "expand") dims = expandDims(source, result);
  if (name == "view" || name == "_unsafe_view" || name == "squeeze" || name == "unsqueeze") {
    dims = insertOnes(source, result);
  }
  if (!dims) return std::nullopt;
  return Selection{std::move(*dims), Dims(source.rank(), SymExpr(1)), 0, {}};
}

// Whether the result's declared sizes and strides are the ones that the selection gives.
bool agrees(const Selection& selection, const TensorType& source, const TensorType& result) {
  if (selection.dims.size() != result.rank()) return false;
  for (size_t i = 0; i < result.rank(); ++i) {
    if (isOne(result.sizes[i])) continue;
    int32_t dim = selection.dims[i];
    if (dim < 0) {
      if (!isZero(result.strides[i])) return false;
      continue;
    }
    if (!sameValue(result.strides[i], source.strides[dim] * selection.steps[dim])) return false;
    if (selection.resized != dim && !sameValue(result.sizes[i], source.sizes[dim])) return false;
  }
  return true;
}

// The strides with which a reshape steps through the source's memory; nullopt if there are none. The source's
// dimensions form groups that step through memory like one dimension; the result's dimensions divide these groups.
std::optional<Dims> regroupedStrides(const TensorType& source, const Dims& sizes) {
  Dims strides(sizes.size(), SymExpr(1));
  size_t next = sizes.size();
  SymExpr groupStride = source.rank() == 0 ? SymExpr(1) : source.strides.back();
  SymExpr inGroup = 1;
  for (size_t dim = source.rank(); dim-- > 0;) {
    inGroup = inGroup * source.sizes[dim];
    bool isGroup =
        dim == 0 || (!isOne(source.sizes[dim - 1]) && !sameValue(source.strides[dim - 1], inGroup * groupStride));
    if (!isGroup) continue;
    SymExpr taken = 1;
    while (next > 0 && (isOne(sizes[next - 1]) || !sameValue(taken, inGroup))) {
      strides[--next] = taken * groupStride;
      taken = taken * sizes[next];
    }
    if (!sameValue(taken, inGroup)) return std::nullopt;
    if (dim > 0) groupStride = source.strides[dim - 1];
    inGroup = 1;
  }
  bool areOnes = std::all_of(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(next), isOne);
  return areOnes ? std::optional(strides) : std::nullopt;
}

bool regroups(const TensorType& source, const TensorType& result) {
  std::optional<Dims> strides = regroupedStrides(source, result.sizes);
  if (!strides) return false;
  for (size_t i = 0; i < result.rank(); ++i) {
    if (!isOne(result.sizes[i]) && !sameValue(result.strides[i], (*strides)[i])) return false;
  }
  return true;
}

std::optional<std::vector<int64_t>> constantsOf(const Dims& dims) {
  std::vector<int64_t> constants;
  for (const SymExpr& dim : dims) {
    if (!dim.isConstant()) return std::nullopt;
    constants.push_back(dim.constant());
  }
  return constants;
}

// The source dimension along which a stride steps; nullopt if `count` steps leave the dimension. Dimensions of a
// contiguous source have one such dimension for each stride.
std::optional<int32_t> dimensionOfStride(const TensorType& source, const std::vector<int64_t>& begins, int64_t stride,
                                         int64_t count) {
  for (size_t dim = 0; dim < source.rank(); ++dim) {
    const int64_t own = source.strides[dim].constant();
    const int64_t size = source.sizes[dim].constant();
    if (size == 1 || stride % own != 0) continue;
    const bool isInside = begins[dim] + (count - 1) * (stride / own) < size;
    return isInside ? std::optional(static_cast<int32_t>(dim)) : std::nullopt;
  }
  return std::nullopt;
}

// The place of an as_strided that is made of slices, selections, permutations and expansions of a contiguous tensor.
std::optional<ViewGeometry> selectedPlace(const TensorType& source, const TensorType& result, int64_t offset) {
  const std::optional<std::vector<int64_t>> sizes = constantsOf(result.sizes);
  const std::optional<std::vector<int64_t>> strides = constantsOf(result.strides);
  if (!sizes || !strides || !constantsOf(source.sizes) || !isContiguous(source)) return std::nullopt;
  std::vector<int64_t> begins;
  int64_t rest = offset;
  for (const SymExpr& step : contiguousStrides(source.sizes)) {
    const int64_t begin = rest / step.constant();
    rest -= begin * step.constant();
    if (begin < 0 || begin >= source.sizes[begins.size()].constant()) return std::nullopt;
    begins.push_back(begin);
  }
  ViewDims dims(result.rank(), -1);
  for (size_t i = 0; i < result.rank(); ++i) {
    if ((*sizes)[i] == 1 || (*strides)[i] == 0) continue;
    const std::optional<int32_t> dim = dimensionOfStride(source, begins, (*strides)[i], (*sizes)[i]);
    if (!dim || std::ranges::find(dims, *dim) != dims.end()) return std::nullopt;
    dims[i] = *dim;
  }
  return ViewGeometry{offset, std::move(dims)};
}

// The place of an as_strided that such steps or a reshape would give.
std::optional<ViewGeometry> stridedPlace(const std::vector<Argument>& arguments, const TensorType& source,
                                         const TensorType& result, bool beginsMemory) {
  const Argument* given = find(arguments, 3, "storage_offset");
  const bool hasOffset = given && given->kind != Argument::Kind::kNone;
  const std::optional<SymExpr> offset = integer(arguments, 3, "storage_offset", 0);
  if (!offset || !offset->isConstant() || (hasOffset && !beginsMemory)) return std::nullopt;
  if (isZero(*offset) && regroups(source, result)) return ViewGeometry{0, std::nullopt};
  return selectedPlace(source, result, offset->constant());
}

}  // namespace

std::optional<ViewGeometry> viewGeometryOf(std::string_view target, const std::vector<Argument>& arguments,
                                           const TensorType& source, const TensorType& result, bool beginsMemory) {
  if (!target.starts_with("aten.") || !isViewOp(target) || source.dtype != result.dtype) return std::nullopt;
  if (std::ranges::any_of(source.sizes, isZero) || std::ranges::any_of(result.sizes, isZero)) return std::nullopt;
  std::string_view name = target.substr(5, target.find('.', 5) - 5);
  if (name == "as_strided") return stridedPlace(arguments, source, result, beginsMemory);
  std::optional<Selection> selection = mapOf(name, arguments, source, result);
  if (selection && agrees(*selection, source, result)) return ViewGeometry{selection->offset, selection->dims};
  const bool isReshape = name == "view" || name == "_unsafe_view";
  if (isReshape && regroups(source, result)) return ViewGeometry{0, std::nullopt};
  return std::nullopt;
}

}  // namespace agspeed::compiler
