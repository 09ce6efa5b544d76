// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/tuner_event.h"

#include <type_traits>

#include "runtime/base/format.h"

namespace agspeed::runtime::tune {
namespace {

template <FieldKind kind, typename Value>
std::string valueText(const Value& value) {
  if constexpr (std::is_same_v<Value, ArmState>) {
    return std::string(toString(value));
  } else if constexpr (std::is_same_v<Value, ArmSpec>) {
    return value.name;
  } else if constexpr (kind == FieldKind::kJson) {
    return formatText("({} bytes)", value.size());
  } else {
    return formatText("{}", value);
  }
}

}  // namespace

std::string toText(const TunerEvent& event) {
  return std::visit(
      [](const auto& event) {
        std::string text = event.kName;
        const auto append = [&]<typename Field>(const Field& field) {
          text += formatText(" {}={}", field.name, valueText<Field::kKind>(event.*field.member));
        };
        std::apply([&](const auto&... fields) { (append(fields), ...); }, event.kFields);
        return text;
      },
      event);
}

}  // namespace agspeed::runtime::tune
