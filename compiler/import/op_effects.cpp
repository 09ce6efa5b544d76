// SPDX-License-Identifier: Apache-2.0
#include "compiler/import/op_effects.h"

#include <algorithm>

namespace agspeed::compiler {
namespace {

// "aten.add_.Tensor" -> "add_"; empty when the target has no namespace.
std::string_view baseName(std::string_view target) {
  size_t begin = target.find('.');
  if (begin == std::string_view::npos) return {};
  std::string_view rest = target.substr(begin + 1);
  return rest.substr(0, rest.find('.'));
}

template <size_t N>
bool contains(const std::string_view (&names)[N], std::string_view name) {
  return std::ranges::find(names, name) != std::end(names);
}

// keep-sorted
constexpr std::string_view kViews[] = {
    "_conj",    "_neg_view", "_reshape_alias",   "_unsafe_view", "alias",           "as_strided",  "detach",
    "diagonal", "expand",    "lift_fresh",       "movedim",      "narrow",          "permute",     "select",
    "slice",    "split",     "split_with_sizes", "squeeze",      "swapaxes",        "t",           "transpose",
    "unbind",   "unfold",    "unsqueeze",        "view",         "view_as_complex", "view_as_real"};

// Operators that return either a view or a copy. keep-sorted
constexpr std::string_view kMaybeViews[] = {"chunk",        "contiguous",
                                            "conj",         "expand_as",
                                            "flatten",      "imag",
                                            "lift",         "matrix_H",
                                            "mT",           "numpy_T",
                                            "ravel",        "real",
                                            "reshape",      "reshape_as",
                                            "resolve_conj", "resolve_neg",
                                            "to",           "type_as",
                                            "unflatten",    "unsafe_chunk",
                                            "unsafe_split", "unsafe_split_with_sizes",
                                            "view_as"};

// keep-sorted
constexpr std::string_view kRandom[] = {"_fused_dropout",
                                        "_scaled_dot_product_cudnn_attention",
                                        "_scaled_dot_product_flash_attention",
                                        "_scaled_dot_product_flash_attention_for_cpu",
                                        "alpha_dropout",
                                        "bernoulli",
                                        "binomial",
                                        "cauchy",
                                        "dropout",
                                        "exponential",
                                        "feature_dropout",
                                        "geometric",
                                        "log_normal",
                                        "multinomial",
                                        "native_dropout",
                                        "normal",
                                        "normal_functional",
                                        "poisson",
                                        "rand",
                                        "rand_like",
                                        "randint",
                                        "randint_like",
                                        "randn",
                                        "randn_like",
                                        "randperm",
                                        "rrelu_with_noise",
                                        "rrelu_with_noise_functional",
                                        "scaled_dot_product_attention",
                                        "uniform"};

bool isInPlace(std::string_view name) { return name.size() > 1 && name.back() == '_' && !name.ends_with("__"); }

std::vector<int32_t> identityDims(size_t rank) {
  std::vector<int32_t> dims(rank);
  for (size_t i = 0; i < rank; ++i) dims[i] = static_cast<int32_t>(i);
  return dims;
}

std::optional<int32_t> dimArgument(const std::vector<Argument>& arguments, size_t index, size_t rank) {
  if (index >= arguments.size() || arguments[index].kind != Argument::Kind::kInteger) return std::nullopt;
  const SymExpr& value = arguments[index].integer;
  if (!value.isConstant()) return std::nullopt;
  int64_t dim = value.constant() < 0 ? value.constant() + static_cast<int64_t>(rank) : value.constant();
  return dim >= 0 && dim < static_cast<int64_t>(rank) ? std::optional(static_cast<int32_t>(dim)) : std::nullopt;
}

std::optional<std::vector<int32_t>> transposeDims(const std::vector<Argument>& arguments, size_t rank) {
  std::optional<int32_t> a = dimArgument(arguments, 1, rank);
  std::optional<int32_t> b = dimArgument(arguments, 2, rank);
  if (!a || !b) return std::nullopt;
  std::vector<int32_t> dims = identityDims(rank);
  std::swap(dims[*a], dims[*b]);
  return dims;
}

std::optional<std::vector<int32_t>> permuteDims(const std::vector<Argument>& arguments, size_t rank) {
  if (arguments.size() < 2 || arguments[1].kind != Argument::Kind::kList) return std::nullopt;
  std::vector<int32_t> dims;
  for (size_t i = 0; i < arguments[1].items.size(); ++i) {
    std::optional<int32_t> dim = dimArgument(arguments[1].items, i, rank);
    if (!dim) return std::nullopt;
    dims.push_back(*dim);
  }
  return dims;
}

// Result dimensions match source dimensions from the right; new and broadcast ones map to none.
std::optional<std::vector<int32_t>> expandDims(const TensorType& source, const TensorType& result) {
  if (source.rank() > result.rank()) return std::nullopt;
  size_t numNew = result.rank() - source.rank();
  std::vector<int32_t> dims(result.rank(), -1);
  for (size_t i = 0; i < source.rank(); ++i) {
    if (!isOne(source.sizes[i])) dims[numNew + i] = static_cast<int32_t>(i);
  }
  return dims;
}

// Pairs the dimensions that are not 1, in order. Fails unless paired sizes are equal.
std::optional<std::vector<int32_t>> insertOnes(const TensorType& source, const TensorType& result) {
  std::vector<int32_t> dims(result.rank(), -1);
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

}  // namespace

Effects effectsOf(std::string_view target, size_t numInputs) {
  Effects effects;
  std::string_view name = baseName(target);
  effects.isOpaque = !target.starts_with("aten.") && !target.starts_with("prims.");
  effects.isRandom = contains(kRandom, name) || (isInPlace(name) && contains(kRandom, name.substr(0, name.size() - 1)));
  effects.mayAlias = contains(kViews, name) || contains(kMaybeViews, name);
  bool writesOut = target.ends_with(".out") || target.ends_with("_out");
  if ((isInPlace(name) || writesOut) && numInputs > 0) {
    effects.mayAlias = true;
    effects.mutates = {isInPlace(name) ? 0 : static_cast<int32_t>(numInputs) - 1};
  }
  bool isForeach = name.starts_with("_foreach") || name.starts_with("_fused");
  if (isForeach && isInPlace(name)) effects.isOpaque = true;
  return effects;
}

bool isViewOp(std::string_view target) {
  return (target.starts_with("aten.") || target.starts_with("prims.")) && contains(kViews, baseName(target));
}

std::optional<std::vector<int32_t>> viewDimsOf(std::string_view target, const std::vector<Argument>& arguments,
                                               const TensorType& source, const TensorType& result) {
  std::string_view name = baseName(target);
  if (!target.starts_with("aten.") || source.dtype != result.dtype) return std::nullopt;
  if (name == "alias" || name == "detach") return identityDims(source.rank());
  if (name == "t") return source.rank() == 2 ? std::vector<int32_t>{1, 0} : identityDims(source.rank());
  if (name == "transpose" || name == "swapaxes") return transposeDims(arguments, source.rank());
  if (name == "permute") return permuteDims(arguments, source.rank());
  if (name == "expand") return expandDims(source, result);
  bool reshapes = name == "view" || name == "_unsafe_view" || name == "squeeze" || name == "unsqueeze";
  return reshapes ? insertOnes(source, result) : std::nullopt;
}

}  // namespace agspeed::compiler
