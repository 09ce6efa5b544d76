// SPDX-License-Identifier: Apache-2.0
// A GraphSpec with one typical call of a row of the import table, on tensors of shape [4, 8], or on images of 4 x 4
// with windows of 2 x 2.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "compiler/import/op_table.h"

namespace agspeed::compiler::testing {

using Json = nlohmann::json;

inline Json tensorType(const std::string& dtype, const Json& shape) { return {{"dtype", dtype}, {"shape", shape}}; }

inline bool startsWithAny(std::string_view text, std::initializer_list<std::string_view> prefixes) {
  for (std::string_view prefix : prefixes) {
    if (text.starts_with(prefix)) return true;
  }
  return false;
}

class TypicalCall {
 public:
  explicit TypicalCall(const OpRow& row) : target_(row.target) {
    bool isBitwise = target_.starts_with("aten.bitwise");
    dtype_ = isBitwise ? "i32" : "f32";
    std::string parameters(row.parameters);
    for (size_t begin = 0; begin < parameters.size();) {
      size_t end = std::min(parameters.find(',', begin), parameters.size());
      addArgument(parameters.substr(begin, end - begin));
      begin = end + 1;
    }
  }

  /// `isRead`: the call's results are outputs. Otherwise there are no outputs, and the import keeps the call anyway.
  Json spec(bool isRead = false) {
    Json call = {{"name", "y"}, {"op", "call"}, {"target", target_}, {"args", args_}, {"type", resultType()}};
    nodes_.push_back(call);
    nodes_.push_back({{"name", "output"}, {"op", "output"}, {"args", {isRead ? outputs() : Json::array()}}});
    return {{"version", 1}, {"symbols", Json::array()}, {"nodes", nodes_}};
  }

 private:
  void addArgument(std::string parameter) {
    parameter.erase(0, parameter.find_first_not_of(' '));
    std::string name = parameter.substr(0, parameter.find_first_of(":= "));
    bool isMask = parameter.find(":bool") != std::string::npos;
    if (name == "indices") {
      args_.push_back(input(name, tensorType("i64", kWindows)));
    } else if (isMask) {
      args_.push_back(input(name, tensorType("bool", {4, 8})));
    } else if (name == "tensors") {
      args_.push_back(Json::array({input("a", tensorType(dtype_, {4, 8})), input("b", tensorType(dtype_, {4, 8}))}));
    } else if (name == "dim" && movesElements()) {
      args_.push_back(1);
    } else if (isTensor(name)) {
      args_.push_back(input(name, tensorType(dtype_, sizeOf(name))));
    } else {
      args_.push_back(scalarFor(name));
    }
  }

  bool isTensor(const std::string& name) const {
    static const std::set<std::string> kAlways = {"x",      "a",    "grad", "y",    "start",        "end",
                                                  "buffer", "mean", "rstd", "bias", "running_mean", "running_var"};
    bool isScalarOverload = target_.ends_with("Scalar") || target_.ends_with("Scalar_mode") ||
                            target_.ends_with("ScalarOther") || target_.ends_with("Tensor_Scalar");
    if (target_ == "aten.pow.Scalar" || target_ == "aten.where.ScalarSelf") return name == "b";
    if (target_ == "aten.where.Scalar") return false;
    if (name == "b") return !isScalarOverload;
    if (name == "weight") return target_ != "aten.lerp.Scalar";
    if (name == "min" || name == "max") return target_.ends_with(".Tensor");
    if (name == "v") return target_.ends_with(".Tensor");
    return kAlways.contains(name);
  }

  bool movesElements() const { return startsWithAny(target_, {"aten.cat", "aten.split", "aten.stack", "aten.unbind"}); }

  inline static const Json kImages = {2, 16, 4, 4};
  inline static const Json kWindows = {2, 16, 2, 2};

  bool isConvolution() const { return target_.starts_with("aten.convolution"); }
  bool isWindow() const {
    const bool isResampling = target_.find("upsample") != std::string::npos;
    return isConvolution() || isResampling || target_.find("pool2d") != std::string::npos;
  }

  Json sizeOfWindow(const std::string& name) const {
    if (name == "weight") return {16, 1, 2, 2};
    if (name == "bias") return Json::array({16});
    return name == "grad" ? kWindows : kImages;
  }

  bool isBatchNorm() const { return target_.find("batch_norm") != std::string::npos; }

  Json sizeOf(const std::string& name) const {
    if (isWindow()) return sizeOfWindow(name);
    if (isBatchNorm()) return name == "x" || name == "grad" ? Json{2, 8, 4, 4} : Json::array({8});
    if (name == "mean" || name == "rstd") return {4, 1};
    bool isAffine = startsWithAny(target_, {"aten.native_layer_norm"}) && (name == "weight" || name == "bias");
    return isAffine ? Json{8} : Json{4, 8};
  }

  static Json scalarFor(const std::string& name) {
    if (name == "dim") return Json::array({-1});
    if (name == "shape") return Json::array({8});
    if (name == "size") return Json::array({4, 8});
    if (name == "pad") return Json::array({1, 2});
    if (name == "split_sizes") return Json::array({2, 6});
    if (name == "output_mask") return Json::array({true, true, true});
    if (name == "approximate") return "none";
    if (name == "rounding_mode") return "floor";
    if (name == "half_to_float" || name == "keepdim" || name == "is_result") return false;
    if (name == "padding" || name == "dilation") return Json::array({name == "padding" ? 0 : 1});
    if (name == "output_padding") return Json::array({0, 0});
    if (name == "transposed" || name == "ceil_mode" || name == "align_corners") return false;
    if (name == "input_size") return kImages;
    if (name == "groups" || name == "bias_sizes") return name == "groups" ? Json(16) : Json::array({16});
    if (startsWithAny(name, {"divisor_override", "dtype", "layout", "device", "pin_memory", "memory_format",
                             "non_blocking", "names", "input_dtype", "correction", "posinf", "neginf", "scales"})) {
      return nullptr;
    }
    if (name == "kernel_size" || name == "stride" || name == "output_size") return Json::array({2, 2});
    if (name == "count_include_pad") return true;
    if (name == "eps") return 1e-5;
    if (name == "p") return 0.5;
    return 2;
  }

  Json input(const std::string& name, const Json& type) {
    nodes_.push_back({{"name", "in_" + name}, {"op", "input"}, {"type", type}});
    return {{"ref", "in_" + name}};
  }

  // The call itself, or each item of its tuple.
  Json outputs() {
    Json type = resultType();
    if (!type.contains("tuple")) return Json::array({{{"ref", "y"}}});
    Json names = Json::array();
    for (size_t i = 0; i < type["tuple"].size(); ++i) {
      std::string name = "y" + std::to_string(i);
      nodes_.push_back({{"name", name},
                        {"op", "call"},
                        {"target", "operator.getitem"},
                        {"args", Json::array({{{"ref", "y"}}, i})},
                        {"type", type["tuple"][i]}});
      names.push_back({{"ref", name}});
    }
    return names;
  }

  Json resultType() const {
    bool givesBool = startsWithAny(target_, {"aten.eq", "aten.ne.", "aten.lt", "aten.le.", "aten.gt", "aten.ge.",
                                             "aten.logical", "aten.is", "aten.any", "aten.all"});
    std::string dtype = givesBool ? "bool" : dtype_;
    Json full = tensorType(dtype, {4, 8});
    if (target_ == "aten.native_layer_norm.default") {
      return {{"tuple", {full, tensorType("f32", {4, 1}), tensorType("f32", {4, 1})}}};
    }
    if (target_ == "aten.native_layer_norm_backward.default") {
      return {{"tuple", {full, tensorType("f32", {8}), tensorType("f32", {8})}}};
    }
    if (isWindow()) return resultOfWindow();
    if (isBatchNorm()) {
      Json types = {tensorType("f32", {2, 8, 4, 4})};
      size_t numResults = target_.find("backward") == std::string::npos ? 5 : 3;
      while (types.size() < numResults) types.push_back(tensorType("f32", {8}));
      return {{"tuple", types}};
    }
    if (target_ == "aten.cat.default") return tensorType(dtype, {4, 16});
    if (target_ == "aten.constant_pad_nd.default") return tensorType(dtype, {4, 11});
    if (target_ == "aten.stack.default") return tensorType(dtype, {4, 2, 8});
    if (startsWithAny(target_, {"aten.split", "aten.unbind"})) return {{"tuple", viewTypes(dtype)}};
    if (target_ == "aten.native_dropout.default") return {{"tuple", {full, tensorType("bool", {4, 8})}}};
    if (startsWithAny(target_, {"aten.log_sigmoid_forward", "aten._prelu_kernel_backward"}))
      return {{"tuple", {full, full}}};
    if (target_.starts_with("aten.var_mean")) return {{"tuple", {tensorType("f32", {4}), tensorType("f32", {4})}}};
    bool reducesAll = startsWithAny(target_, {"aten.sum.default", "aten.mean.default", "aten.max.default",
                                              "aten.min.default", "aten.any.default", "aten.all.default"});
    if (reducesAll || target_ == "aten.scalar_tensor.default") return tensorType(dtype, Json::array());
    bool reducesRow = startsWithAny(
        target_, {"aten.sum.", "aten.mean.", "aten.amax", "aten.amin", "aten.any.", "aten.all.", "aten.var."});
    return reducesRow ? tensorType(dtype, {4}) : full;
  }

  Json resultOfWindow() const {
    const Json images = tensorType("f32", kImages);
    const Json windows = tensorType("f32", kWindows);
    if (target_ == "aten.convolution_backward.default") {
      return {{"tuple", {images, tensorType("f32", {16, 1, 2, 2}), tensorType("f32", Json::array({16}))}}};
    }
    if (target_ == "aten.max_pool2d_with_indices.default") return {{"tuple", {windows, tensorType("i64", kWindows)}}};
    return target_.find("backward") == std::string::npos ? windows : images;
  }

  // The results of a split or unbind of a tensor of shape [4, 8] along its last dimension.
  Json viewTypes(const std::string& dtype) const {
    bool isUnbind = target_.starts_with("aten.unbind");
    std::vector<int> sizes = isUnbind                         ? std::vector<int>(8, 1)
                             : target_ == "aten.split.Tensor" ? std::vector<int>(4, 2)
                                                              : std::vector<int>{2, 6};
    Json types = Json::array();
    for (int size : sizes) {
      Json type = tensorType(dtype, isUnbind ? Json::array({4}) : Json::array({4, size}));
      type["stride"] = isUnbind ? Json::array({8}) : Json::array({8, 1});
      types.push_back(type);
    }
    return types;
  }

  std::string target_;
  std::string dtype_;
  Json nodes_ = Json::array();
  Json args_ = Json::array();
};

}  // namespace agspeed::compiler::testing
