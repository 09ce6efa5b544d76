// SPDX-License-Identifier: Apache-2.0
#include "runtime/aten/operator_call.h"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/aten/arguments.h"

namespace agspeed::runtime::aten {
namespace {

// "aten.addmm.default" -> {"aten::addmm", ""}.
StatusOr<c10::OperatorName> operatorName(const std::string& text) {
  const size_t first = text.find('.');
  const size_t last = text.rfind('.');
  if (first == std::string::npos || first == last) {
    return invalidArgument("\"" + text + "\" is not of the form namespace.operator.overload");
  }
  const std::string overload = text.substr(last + 1);
  return c10::OperatorName(text.substr(0, first) + "::" + text.substr(first + 1, last - first - 1),
                           overload == "default" ? "" : overload);
}

// The type inside an optional, or the type itself.
const c10::Type* withoutOptional(const c10::Type* type) {
  const auto* optional = type->castRaw<c10::OptionalType>();
  return optional != nullptr ? optional->getElementType().get() : type;
}

// Whether `result`, or an element of it if it is a list ("Tensor(a)[]"), is in an alias set that `source` starts in.
bool holdsSetOf(const c10::AliasInfo& result, const c10::AliasInfo& source) {
  const auto& sets = source.beforeSets();
  const auto held = [&result](const auto& set) {
    return result.beforeSets().count(set) != 0 || result.afterSets().count(set) != 0;
  };
  if (std::any_of(sets.begin(), sets.end(), held)) return true;
  const auto& elements = result.containedTypes();
  return std::any_of(elements.begin(), elements.end(),
                     [&](const auto& element) { return holdsSetOf(element, source); });
}

}  // namespace

StatusOr<OperatorCall> OperatorCall::bind(const ExternalCall& call) {
  AG_ASSIGN_OR_RETURN(c10::OperatorName name, operatorName(call.op));
  const std::optional<c10::OperatorHandle> handle = c10::Dispatcher::singleton().findSchema(name);
  if (!handle) return unsupported("torch has no operator " + call.op);
  OperatorCall bound(*handle);
  bound.results_ = call.results;
  bound.args_.resize(handle->schema().arguments().size());
  for (size_t i = 0; i < call.args.size(); ++i) {
    AG_RETURN_IF_ERROR(bound.bindArgument(i, call.args[i]).withContext(call.op));
  }
  return bound;
}

Status OperatorCall::bindArgument(size_t index, const ExternalArg& arg) {
  const auto& schema = handle_.schema().arguments();
  if (!arg.name.empty()) {
    const auto named = std::find_if(schema.begin(), schema.end(), [&](const auto& a) { return a.name() == arg.name; });
    if (named == schema.end()) return invalidArgument("has no argument \"" + arg.name + "\"");
    index = static_cast<size_t>(named - schema.begin());
  } else if (index >= schema.size()) {
    return invalidArgument("takes {} arguments", schema.size());
  }
  if (args_[index]) return invalidArgument("got argument \"" + schema[index].name() + "\" twice");
  args_[index] = arg;
  const bool constant = arg.kind == ExternalArg::Kind::kScalar || arg.kind == ExternalArg::Kind::kScalarList;
  return constant ? Status() : bindTensors(index, arg);
}

Status OperatorCall::bindTensors(size_t position, const ExternalArg& arg) {
  const c10::Argument& schema = handle_.schema().arguments()[position];
  const c10::Type* type = withoutOptional(schema.type().get());
  const auto* list = type->castRaw<c10::ListType>();
  TensorArgument bound;
  bound.position = position;
  bound.values = arg.values;
  bound.isList = arg.kind == ExternalArg::Kind::kValueList;
  if (bound.isList != (list != nullptr) || (!bound.isList && arg.values.size() != 1)) {
    return invalidArgument("argument \"" + schema.name() + "\" has type " + schema.type()->str());
  }
  bound.isOptionalList = list != nullptr && list->getElementType()->kind() == c10::TypeKind::OptionalType;
  tensors_.push_back(std::move(bound));
  return {};
}

StatusOr<std::vector<c10::IValue>> OperatorCall::resolveArguments(const std::vector<int64_t>& symbols) const {
  const auto& schema = handle_.schema().arguments();
  std::vector<c10::IValue> values(schema.size());
  for (size_t i = 0; i < schema.size(); ++i) {
    if (!args_[i]) {
      if (!schema[i].default_value()) return invalidArgument("argument \"" + schema[i].name() + "\" is missing");
      values[i] = *schema[i].default_value();
    } else if (args_[i]->kind == ExternalArg::Kind::kScalar || args_[i]->kind == ExternalArg::Kind::kScalarList) {
      AG_ASSIGN_OR_RETURN(values[i], convertArgument(*args_[i], schema[i], symbols));
    }
  }
  return values;
}

ValueId OperatorCall::aliasOfResult(size_t i) const {
  // The elements of a list result are separate entries of results(), so the list's alias set applies to all of them.
  const auto& returns = handle_.schema().returns();
  if (returns.empty()) return kNoValue;
  // This operator returns a view although its schema does not say so.
  if (handle_.operator_name().name == "aten::_unsafe_view") return tensors_.front().values.front();
  const c10::AliasInfo* result = returns[std::min(i, returns.size() - 1)].alias_info();
  if (result == nullptr) return kNoValue;
  for (const TensorArgument& argument : tensors_) {
    const c10::AliasInfo* source = handle_.schema().arguments()[argument.position].alias_info();
    if (source == nullptr || argument.values.empty()) continue;
    if (holdsSetOf(*result, *source)) return argument.values.front();
  }
  return kNoValue;
}

}  // namespace agspeed::runtime::aten
