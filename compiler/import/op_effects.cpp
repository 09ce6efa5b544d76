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

}  // namespace agspeed::compiler
