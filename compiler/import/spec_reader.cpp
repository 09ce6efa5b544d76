// SPDX-License-Identifier: Apache-2.0
#include "compiler/import/spec_reader.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "runtime/base/json_depth.h"

namespace agspeed::compiler {
namespace {

using Json = nlohmann::json;

StatusOr<SymExpr> readInteger(const Json& json) {
  if (json.is_number_integer()) return SymExpr(json.get<int64_t>());
  if (!json.is_string()) return invalidArgument("expected an integer or a size expression, not " + json.dump());
  const std::string& text = json.get_ref<const std::string&>();
  StatusOr<SymExpr> expr = SymExpr::parse(text);
  return expr.hasValue() ? expr : unsupported("size \"" + text + "\" is not an expression of backed symbols");
}

StatusOr<Dims> readDims(const Json& json) {
  if (!json.is_array()) return invalidArgument("expected a list of sizes, not " + json.dump());
  Dims dims;
  for (const Json& item : json) {
    AG_ASSIGN_OR_RETURN(SymExpr dim, readInteger(item));
    dims.push_back(std::move(dim));
  }
  return dims;
}

StatusOr<DType> readDType(const Json& json) {
  std::string name = json.is_string() ? json.get<std::string>() : json.dump();
  std::optional<DType> dtype = dtypeFromString(name);
  if (!dtype) return unsupported("dtype \"" + name + "\" is not supported");
  return *dtype;
}

StatusOr<SpecType> readType(const Json& json) {
  SpecType type;
  if (!json.is_object()) return type;
  if (auto sym = json.find("sym"); sym != json.end()) {
    type.kind = SpecType::Kind::kScalar;
    AG_ASSIGN_OR_RETURN(type.scalar, readInteger(*sym));
    return type;
  }
  if (auto items = json.find("tuple"); items != json.end()) {
    type.kind = SpecType::Kind::kTuple;
    for (const Json& item : *items) {
      AG_ASSIGN_OR_RETURN(SpecType element, readType(item));
      type.items.push_back(std::move(element));
    }
    return type;
  }
  if (!json.contains("dtype") || !json.contains("shape")) return type;
  type.kind = SpecType::Kind::kTensor;
  AG_ASSIGN_OR_RETURN(type.tensor.dtype, readDType(json["dtype"]));
  AG_ASSIGN_OR_RETURN(type.tensor.sizes, readDims(json["shape"]));
  type.tensor.strides = contiguousStrides(type.tensor.sizes);
  if (auto stride = json.find("stride"); stride != json.end() && !stride->is_null()) {
    AG_ASSIGN_OR_RETURN(type.tensor.strides, readDims(*stride));
  }
  if (type.tensor.strides.size() != type.tensor.sizes.size()) return invalidArgument("has as many strides as sizes?");
  AG_ASSIGN_OR_RETURN(type.device, deviceFromString(json.value("device", "cpu")));
  return type;
}

SpecArg makeArg(SpecArg::Kind kind) {
  SpecArg arg;
  arg.kind = kind;
  return arg;
}

SpecArg stringArg(std::string text) {
  SpecArg arg = makeArg(SpecArg::Kind::kString);
  arg.text = std::move(text);
  return arg;
}

StatusOr<SpecArg> floatArg(const std::string& text) {
  SpecArg arg = makeArg(SpecArg::Kind::kFloat);
  if (text == "inf") {
    arg.number = std::numeric_limits<double>::infinity();
  } else if (text == "-inf") {
    arg.number = -std::numeric_limits<double>::infinity();
  } else if (text == "nan") {
    arg.number = std::numeric_limits<double>::quiet_NaN();
  } else {
    return invalidArgument("\"" + text + "\" is not a special float");
  }
  return arg;
}

StatusOr<SpecArg> readArg(const Json& json);

StatusOr<SpecArg> readList(const Json& json) {
  SpecArg arg = makeArg(SpecArg::Kind::kList);
  for (const Json& item : json) {
    AG_ASSIGN_OR_RETURN(SpecArg element, readArg(item));
    arg.items.push_back(std::move(element));
  }
  return arg;
}

// The tagged encodings: {"ref": ..}, {"dtype": ..}, ...
StatusOr<SpecArg> readTagged(const Json& json) {
  if (json.size() != 1) return invalidArgument("argument " + json.dump() + " has an unknown encoding");
  const std::string& tag = json.begin().key();
  const Json& body = json.begin().value();
  if (tag == "tuple") return readList(body);
  if (tag == "sym") {
    SpecArg arg = makeArg(SpecArg::Kind::kInteger);
    AG_ASSIGN_OR_RETURN(arg.integer, readInteger(body));
    return arg;
  }
  if (!body.is_string()) return unsupported("argument " + json.dump() + " is not supported natively");
  std::string text = body.get<std::string>();
  if (tag == "ref") {
    SpecArg arg = makeArg(SpecArg::Kind::kRef);
    arg.text = std::move(text);
    return arg;
  }
  if (tag == "dtype") {
    SpecArg arg = makeArg(SpecArg::Kind::kDType);
    AG_ASSIGN_OR_RETURN(arg.dtype, readDType(body));
    return arg;
  }
  if (tag == "float") return floatArg(text);
  if (tag == "device" || tag == "layout" || tag == "memory_format" || tag == "str") return stringArg(std::move(text));
  return unsupported("argument " + json.dump() + " is not supported natively");
}

StatusOr<SpecArg> readArg(const Json& json) {
  if (json.is_null()) return SpecArg{};
  if (json.is_array()) return readList(json);
  if (json.is_object()) return readTagged(json);
  if (json.is_string()) return stringArg(json.get<std::string>());
  SpecArg arg;
  if (json.is_boolean()) {
    arg.kind = SpecArg::Kind::kBool;
    arg.boolean = json.get<bool>();
  } else if (json.is_number_integer()) {
    arg.kind = SpecArg::Kind::kInteger;
    arg.integer = json.get<int64_t>();
  } else {
    arg.kind = SpecArg::Kind::kFloat;
    arg.number = json.get<double>();
  }
  return arg;
}

StatusOr<SpecNode> readNode(const Json& json) {
  SpecNode node;
  node.name = json.value("name", "");
  node.op = json.value("op", "");
  node.target = json.value("target", "");
  if (auto type = json.find("type"); type != json.end()) {
    AG_ASSIGN_OR_RETURN(node.type, readType(*type));
  }
  for (const Json& item : json.value("args", Json::array())) {
    AG_ASSIGN_OR_RETURN(SpecArg arg, readArg(item));
    node.args.push_back(std::move(arg));
  }
  const Json kwargs = json.value("kwargs", Json::object());
  for (const auto& [name, item] : kwargs.items()) {
    AG_ASSIGN_OR_RETURN(node.kwargs[name], readArg(item));
  }
  return node;
}

// "s12" -> 12; -1 for any other name.
int symbolIndex(const std::string& name) {
  StatusOr<SymExpr> symbol = SymExpr::parse(name);
  return symbol.hasValue() && symbol->toString() == name ? symbol->maxSymbol() : -1;
}

Status readSymbols(const Json& json, Spec& spec) {
  constexpr int kMaxSymbols = 4096;
  for (const Json& symbol : json) {
    std::string name = symbol.value("name", "");
    int index = symbolIndex(name);
    if (index < 0 || index >= kMaxSymbols) return unsupported("symbol \"" + name + "\" is not a backed size symbol");
    if (spec.hints.size() <= static_cast<size_t>(index)) spec.hints.resize(static_cast<size_t>(index) + 1, 64);
    auto hint = symbol.find("hint");
    if (hint == symbol.end() || !hint->is_number_integer()) continue;
    const auto value = hint->get<int64_t>();
    // Graphs take symbols for sizes. A negative one is a number of the program, such as an index from the end.
    if (value < 0) return unsupported("symbol \"" + name + "\" is negative (" + std::to_string(value) + ")");
    spec.hints[static_cast<size_t>(index)] = value;
  }
  return {};
}

StatusOr<Spec> readRoot(const Json& root) {
  if (!root.is_object() || !root.contains("nodes") || !root["nodes"].is_array()) {
    return invalidArgument("a GraphSpec is a JSON object with a list \"nodes\"");
  }
  if (root.value("version", 0) != 1) {
    return invalidArgument("GraphSpec version " + root.value("version", Json()).dump() +
                           " is not supported; expected 1");
  }
  Spec spec;
  AG_RETURN_IF_ERROR(readSymbols(root.value("symbols", Json::array()), spec));
  for (const Json& item : root["nodes"]) {
    if (!item.is_object()) return invalidArgument("a GraphSpec node is a JSON object, not " + item.dump());
    StatusOr<SpecNode> node = readNode(item);
    if (!node.hasValue()) return node.status().withContext("GraphSpec node \"" + item.value("name", "?") + "\"");
    spec.nodes.push_back(std::move(*node));
  }
  return spec;
}

}  // namespace

StatusOr<Spec> readSpec(std::string_view json) {
  if (isNestedTooDeep(json)) return invalidArgument("malformed GraphSpec: it is nested too deep");
  try {
    return readRoot(Json::parse(json));
  } catch (const Json::exception& error) {
    return invalidArgument(std::string("malformed GraphSpec: ") + error.what());
  }
}

}  // namespace agspeed::compiler
