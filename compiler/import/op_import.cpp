// SPDX-License-Identifier: Apache-2.0
#include "compiler/import/op_import.h"

#include <algorithm>
#include <charconv>

#include "runtime/base/format.h"

namespace agspeed::compiler {
namespace {

struct Parameter {
  std::string name;
  std::string kind;
  std::string defaultText;
};

std::string trim(std::string_view text) {
  size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(' ') - begin + 1));
}

// "name[:kind][=default]"
Parameter parseParameter(std::string_view text) {
  Parameter parameter;
  size_t equals = text.find('=');
  if (equals != std::string_view::npos) parameter.defaultText = trim(text.substr(equals + 1));
  std::string_view head = text.substr(0, equals);
  size_t colon = head.find(':');
  if (colon != std::string_view::npos) parameter.kind = trim(head.substr(colon + 1));
  parameter.name = trim(head.substr(0, colon));
  return parameter;
}

std::vector<Parameter> parseParameters(std::string_view text) {
  std::vector<Parameter> parameters;
  while (!text.empty()) {
    size_t comma = std::min(text.find(','), text.size());
    parameters.push_back(parseParameter(text.substr(0, comma)));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return parameters;
}

// Defaults are numbers or 'words'; a parameter without a default reads as None.
SpecArg defaultOf(const Parameter& parameter) {
  SpecArg arg;
  const std::string& text = parameter.defaultText;
  if (text.empty() || text == "None") return arg;
  if (text.front() == '\'') {
    arg.kind = SpecArg::Kind::kString;
    arg.text = text.substr(1, text.size() - 2);
    return arg;
  }
  arg.kind = SpecArg::Kind::kFloat;
  std::from_chars(text.data(), text.data() + text.size(), arg.number);
  if (text.find('.') == std::string::npos) {
    arg.kind = SpecArg::Kind::kInteger;
    arg.integer = static_cast<int64_t>(arg.number);
  }
  return arg;
}

}  // namespace

OpImport::OpImport(Graph& graph, const Bindings& bindings, const SpecNode& node)
    : bindings_(bindings),
      node_(node),
      emitter_(graph, node.name,
               node.type.kind == SpecType::Kind::kTuple && !node.type.items.empty() ? node.type.items[0].tensor
                                                                                    : node.type.tensor),
      results_(node.type.kind == SpecType::Kind::kTuple ? node.type.items.size() : 1, kNoValue) {}

Status OpImport::bind(std::string_view text) {
  std::vector<Parameter> parameters = parseParameters(text);
  if (node_.args.size() > parameters.size()) return unsupported("more arguments than the import table names");
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    parameters_.push_back(parameter.name);
    kinds_[parameter.name] = parameter.kind;
    auto keyword = node_.kwargs.find(parameter.name);
    arguments_[parameter.name] = i < node_.args.size()           ? node_.args[i]
                                 : keyword != node_.kwargs.end() ? keyword->second
                                                                 : defaultOf(parameter);
  }
  for (const auto& [name, arg] : node_.kwargs) {
    if (!arguments_.contains(name)) return unsupported("keyword \"" + name + "\" is not in the import table");
  }
  for (const std::string& name : parameters_) {
    bool isOnHost = isTensor(name) && emitter_.graph().values[tensor(name)].isOnHost;
    if (isOnHost) return unsupported("argument \"" + name + "\" is on the CPU");
  }
  return {};
}

const SpecArg* OpImport::find(const std::string& parameter) const {
  auto found = arguments_.find(parameter);
  return found == arguments_.end() || found->second.kind == SpecArg::Kind::kNone ? nullptr : &found->second;
}

bool OpImport::isNone(const std::string& parameter) const { return find(parameter) == nullptr; }

bool OpImport::isTensor(const std::string& parameter) const {
  const SpecArg* arg = find(parameter);
  if (!arg || arg->kind != SpecArg::Kind::kRef) return false;
  auto binding = bindings_.find(arg->text);
  return binding != bindings_.end() && !binding->second.scalar && binding->second.values.size() == 1 &&
         binding->second.values[0] != kNoValue;
}

ValueId OpImport::tensor(const std::string& parameter) const {
  AG_CHECK(isTensor(parameter), parameter);
  return bindings_.find(find(parameter)->text)->second.values[0];
}

std::optional<OpImport::Padded> OpImport::padded(const std::string& parameter) {
  const Binding& binding = bindings_.find(find(parameter)->text)->second;
  const bool isPadding = binding.definition && binding.definition->target == "aten.constant_pad_nd.default";
  if (!isPadding || binding.numReaders != 1) return std::nullopt;
  const auto changesTensors = [](const Node& node) { return node.effects.isOpaque || !node.effects.mutates.empty(); };
  if (std::ranges::any_of(emitter_.graph().nodes, changesTensors)) return std::nullopt;
  OpImport padding(emitter_.graph(), bindings_, *binding.definition);
  if (!padding.bind("x, pad, value=0").isOk() || !padding.isTensor("x")) return std::nullopt;
  const auto sides = padding.integers("pad");
  const auto value = padding.number("value");
  const bool isZero = value.hasValue() && *value == 0;
  if (!isZero || !sides.hasValue() || std::ranges::any_of(*sides, [](int64_t side) { return side < 0; })) {
    return std::nullopt;
  }
  return Padded{padding.tensor("x"), *sides};
}

StatusOr<std::vector<ValueId>> OpImport::tensors(const std::string& parameter) const {
  const SpecArg* arg = find(parameter);
  if (!arg || arg->kind != SpecArg::Kind::kList) return unsupported("argument \"" + parameter + "\" is not a list");
  std::vector<ValueId> values;
  for (const SpecArg& item : arg->items) {
    auto binding = item.kind == SpecArg::Kind::kRef ? bindings_.find(item.text) : bindings_.end();
    bool isTensor = binding != bindings_.end() && !binding->second.scalar && binding->second.values.size() == 1 &&
                    binding->second.values[0] != kNoValue;
    if (!isTensor || emitter_.graph().values[binding->second.values[0]].isOnHost) {
      return unsupported("argument \"" + parameter + "\" is not a list of tensors on the device");
    }
    values.push_back(binding->second.values[0]);
  }
  return values;
}

std::optional<SymExpr> OpImport::scalarOf(const SpecArg& arg) const {
  if (arg.kind == SpecArg::Kind::kInteger) return arg.integer;
  if (arg.kind != SpecArg::Kind::kRef) return std::nullopt;
  auto binding = bindings_.find(arg.text);
  return binding == bindings_.end() ? std::nullopt : binding->second.scalar;
}

StatusOr<double> OpImport::number(const std::string& parameter) const {
  const SpecArg* arg = find(parameter);
  if (arg && arg->kind == SpecArg::Kind::kFloat) return arg->number;
  if (arg && arg->kind == SpecArg::Kind::kBool) return arg->boolean ? 1.0 : 0.0;
  std::optional<SymExpr> scalar = arg ? scalarOf(*arg) : std::nullopt;
  if (scalar && scalar->isConstant()) return static_cast<double>(scalar->constant());
  return unsupported("argument \"" + parameter + "\" is not a constant number");
}

StatusOr<int64_t> OpImport::integer(const std::string& parameter) const {
  const SpecArg* arg = find(parameter);
  std::optional<SymExpr> scalar = arg ? scalarOf(*arg) : std::nullopt;
  if (scalar && scalar->isConstant()) return scalar->constant();
  return unsupported("argument \"" + parameter + "\" is not a constant integer");
}

StatusOr<std::vector<int64_t>> OpImport::integers(const std::string& parameter) const {
  const SpecArg* arg = find(parameter);
  if (!arg) return std::vector<int64_t>{};
  std::vector<int64_t> result;
  for (const SpecArg& item : arg->kind == SpecArg::Kind::kList ? arg->items : std::vector<SpecArg>{*arg}) {
    std::optional<SymExpr> scalar = scalarOf(item);
    if (!scalar || !scalar->isConstant())
      return unsupported("argument \"" + parameter + "\" is not a list of integers");
    result.push_back(scalar->constant());
  }
  return result;
}

bool OpImport::flag(const std::string& parameter) const {
  const SpecArg* arg = find(parameter);
  if (!arg) return false;
  if (arg->kind == SpecArg::Kind::kBool) return arg->boolean;
  std::optional<SymExpr> scalar = scalarOf(*arg);
  return scalar && scalar->isConstant() && scalar->constant() != 0;
}

std::string OpImport::text(const std::string& parameter) const {
  const SpecArg* arg = find(parameter);
  return arg && arg->kind == SpecArg::Kind::kString ? arg->text : "";
}

StatusOr<DType> OpImport::commonType() const {
  std::vector<PromotionInput> inputs;
  for (const std::string& parameter : parameters_) {
    const SpecArg* arg = find(parameter);
    const std::string& kind = kinds_.at(parameter);
    if (!arg || kind == "bool") continue;
    if (isTensor(parameter)) {
      const TensorType& type = emitter_.typeOf(tensor(parameter));
      inputs.push_back({type.dtype, type.rank() == 0 ? PromotionInput::Rank::kZeroDim : PromotionInput::Rank::kTensor});
      continue;
    }
    DType dtype = arg->kind == SpecArg::Kind::kFloat  ? DType::kF64
                  : arg->kind == SpecArg::Kind::kBool ? DType::kBool
                                                      : DType::kI64;
    if (arg->kind != SpecArg::Kind::kString) inputs.push_back({dtype, PromotionInput::Rank::kNumber});
  }
  std::optional<DType> common = compiler::resultType(inputs);
  if (!common) return unsupported("complex numbers are left to ATen");
  return *common;
}

StatusOr<Operand> OpImport::operand(const std::string& parameter, DType common, DType compute) {
  const std::string& kind = kinds_.at(parameter);
  if (kind == "bool") common = compute = DType::kBool;
  if (isTensor(parameter)) return emitter_.cast(emitter_.cast(emitter_.use(tensor(parameter)), common), compute);
  const SpecArg* arg = find(parameter);
  std::optional<SymExpr> scalar = arg ? scalarOf(*arg) : std::nullopt;
  if (scalar && !scalar->isConstant()) return emitter_.symbol(*scalar, compute);
  AG_ASSIGN_OR_RETURN(double value, number(parameter));
  if (kind == "rounded") value = emitter_.number(value, common).number;
  return emitter_.number(value, compute);
}

StatusOr<TensorType> OpImport::resultType(size_t index) const {
  const SpecType& type = node_.type.kind == SpecType::Kind::kTuple ? node_.type.items.at(index) : node_.type;
  if (type.kind != SpecType::Kind::kTensor) return unsupported("the result is not a tensor");
  if (type.device != emitter_.graph().device) return unsupported("the result is on {}", toString(type.device));
  if (type.tensor.dtype == DType::kC64 || type.tensor.dtype == DType::kC128)
    return unsupported("the result is complex");
  return type.tensor;
}

bool OpImport::isResultWanted(size_t index) const { return node_.type.items.at(index).kind == SpecType::Kind::kTensor; }

Status OpImport::setResult(const Operand& operand, size_t index) {
  AG_ASSIGN_OR_RETURN(TensorType type, resultType(index));
  if (!operand.isNumber && !broadcastsTo(emitter_.typeOf(operand.value).sizes, type.sizes)) {
    return unsupported("only a guard makes the result's size equal");
  }
  results_.at(index) = emitter_.materialize(operand, type, resultName(index));
  return {};
}

std::string OpImport::resultName(size_t index) const {
  return node_.type.kind == SpecType::Kind::kTuple ? formatText("{}.r{}", node_.name, index) : node_.name;
}

void OpImport::setResultValue(ValueId value, size_t index) { results_.at(index) = value; }

}  // namespace agspeed::compiler
