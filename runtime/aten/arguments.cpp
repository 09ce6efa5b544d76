// SPDX-License-Identifier: Apache-2.0
#include "runtime/aten/arguments.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>

#include <array>
#include <string>
#include <utility>

#include "runtime/aten/tensors.h"

namespace agspeed::runtime::aten {
namespace {

using c10::IValue;
using c10::TypeKind;
using Scalar = ExternalArg::Scalar;

constexpr std::array<std::pair<std::string_view, c10::MemoryFormat>, 4> kMemoryFormats = {{
    {"channels_last", c10::MemoryFormat::ChannelsLast},
    {"channels_last_3d", c10::MemoryFormat::ChannelsLast3d},
    {"contiguous_format", c10::MemoryFormat::Contiguous},
    {"preserve_format", c10::MemoryFormat::Preserve},
}};

Status mismatch(const std::string& wanted) { return invalidArgument("expected " + wanted); }

// A scalar with its SymExpr evaluated: monostate for None.
using Plain = std::variant<std::monostate, bool, double, int64_t, std::string, DType>;

StatusOr<Plain> plain(const Scalar& scalar, const std::vector<int64_t>& symbols) {
  if (const auto* expression = std::get_if<SymExpr>(&scalar)) {
    AG_ASSIGN_OR_RETURN(int64_t value, expression->evaluate(symbols));
    return Plain(value);
  }
  if (const auto* flag = std::get_if<bool>(&scalar)) return Plain(*flag);
  if (const auto* number = std::get_if<double>(&scalar)) return Plain(*number);
  if (const auto* text = std::get_if<std::string>(&scalar)) return Plain(*text);
  if (const auto* type = std::get_if<ExternalArg::Type>(&scalar)) return Plain(type->dtype);
  return Plain(std::monostate{});
}

StatusOr<c10::Scalar> toNumber(const Plain& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return c10::Scalar(*flag);
  if (const auto* integer = std::get_if<int64_t>(&value)) return c10::Scalar(*integer);
  if (const auto* number = std::get_if<double>(&value)) return c10::Scalar(*number);
  return mismatch("a number");
}

StatusOr<IValue> toEnum(const std::string& text, const std::string& typeName) {
  for (const auto& [name, format] : kMemoryFormats) {
    if (name == text) return IValue(static_cast<int64_t>(format));
  }
  if (text == "strided") return IValue(static_cast<int64_t>(c10::Layout::Strided));
  return mismatch(typeName + ", got \"" + text + "\"");
}

StatusOr<IValue> toInteger(const Plain& value, const std::string& typeName) {
  if (const auto* type = std::get_if<DType>(&value)) return IValue(static_cast<int64_t>(scalarTypeOf(*type)));
  if (const auto* text = std::get_if<std::string>(&value)) return toEnum(*text, typeName);
  if (const auto* integer = std::get_if<int64_t>(&value)) return IValue(*integer);
  if (const auto* flag = std::get_if<bool>(&value)) return IValue(static_cast<int64_t>(*flag));
  return mismatch(typeName);
}

StatusOr<IValue> toDevice(const Plain& value) {
  const auto* text = std::get_if<std::string>(&value);
  if (text == nullptr) return mismatch("a device");
  try {
    return IValue(c10::Device(*text));
  } catch (const std::exception& error) {
    return invalidArgument("\"" + *text + "\" is not a device");
  }
}

StatusOr<IValue> toWrappedNumber(const Plain& value) {
  AG_ASSIGN_OR_RETURN(c10::Scalar number, toNumber(value));
  at::Tensor tensor = c10::scalar_to_tensor(number);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return IValue(std::move(tensor));
}

StatusOr<IValue> convertOne(const Plain& value, const c10::Type& type) {
  if (const auto* optional = type.castRaw<c10::OptionalType>()) {
    if (std::holds_alternative<std::monostate>(value)) return IValue();
    return convertOne(value, *optional->getElementType());
  }
  switch (type.kind()) {
    case TypeKind::IntType:
    case TypeKind::SymIntType:
    case TypeKind::ScalarTypeType:
    case TypeKind::LayoutType:
    case TypeKind::MemoryFormatType: return toInteger(value, type.str());
    case TypeKind::FloatType: {
      AG_ASSIGN_OR_RETURN(c10::Scalar number, toNumber(value));
      return IValue(number.toDouble());
    }
    case TypeKind::BoolType: {
      AG_ASSIGN_OR_RETURN(c10::Scalar number, toNumber(value));
      return IValue(number.toBool());
    }
    case TypeKind::NumberType: {
      AG_ASSIGN_OR_RETURN(c10::Scalar number, toNumber(value));
      return IValue(number);
    }
    case TypeKind::StringType:
      if (const auto* text = std::get_if<std::string>(&value)) return IValue(*text);
      return mismatch("a string");
    case TypeKind::DeviceObjType: return toDevice(value);
    case TypeKind::TensorType: return toWrappedNumber(value);
    default: return mismatch(type.str());
  }
}

StatusOr<IValue> convertList(const std::vector<Scalar>& scalars, const c10::TypePtr& element,
                             const std::vector<int64_t>& symbols) {
  // SymInt lists are passed as int lists, because operators accept both.
  c10::impl::GenericList list(element->kind() == TypeKind::SymIntType ? c10::TypePtr(c10::IntType::get()) : element);
  list.reserve(scalars.size());
  for (const Scalar& scalar : scalars) {
    AG_ASSIGN_OR_RETURN(Plain value, plain(scalar, symbols));
    AG_ASSIGN_OR_RETURN(IValue converted, convertOne(value, *element));
    list.push_back(std::move(converted));
  }
  return IValue(std::move(list));
}

StatusOr<IValue> convert(const ExternalArg& arg, const c10::Argument& schema, const std::vector<int64_t>& symbols) {
  const c10::Type* type = schema.real_type().get();
  const auto* optional = type->castRaw<c10::OptionalType>();
  const c10::Type* inner = optional != nullptr ? optional->getElementType().get() : type;
  const auto* list = inner->castRaw<c10::ListType>();
  if (list == nullptr) {
    if (arg.kind != ExternalArg::Kind::kScalar || arg.scalars.size() != 1) return mismatch(type->str());
    AG_ASSIGN_OR_RETURN(Plain value, plain(arg.scalars[0], symbols));
    return convertOne(value, *type);
  }
  if (arg.kind == ExternalArg::Kind::kScalarList) return convertList(arg.scalars, list->getElementType(), symbols);
  if (arg.scalars.size() != 1) return mismatch(type->str());
  const bool none = std::holds_alternative<ExternalArg::None>(arg.scalars[0]);
  if (none && optional != nullptr) return IValue();
  // Python allows dim=1 for int[1] dim.
  const size_t repeats = static_cast<size_t>(schema.N().value_or(1));
  return convertList(std::vector<Scalar>(repeats, arg.scalars[0]), list->getElementType(), symbols);
}

}  // namespace

StatusOr<IValue> convertArgument(const ExternalArg& arg, const c10::Argument& schema,
                                 const std::vector<int64_t>& symbols) {
  StatusOr<IValue> converted = convert(arg, schema, symbols);
  if (!converted.hasValue()) return converted.status().withContext("argument \"" + schema.name() + "\"");
  return converted;
}

}  // namespace agspeed::runtime::aten
