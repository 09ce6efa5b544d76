// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/format.h"

// The only file that uses fmt. It is header-only because Debian has no static library of it.
#define FMT_HEADER_ONLY
#include <fmt/args.h>
#include <fmt/format.h>

namespace agspeed {
namespace {

std::string_view view(const std::string& text) { return text; }
template <typename T>
T view(const T& value) {
  return value;
}

}  // namespace

std::string formatArguments(std::string_view pattern, std::initializer_list<FormatArgument> arguments) {
  fmt::dynamic_format_arg_store<fmt::format_context> store;
  for (const FormatArgument& argument : arguments) {
    std::visit([&](const auto& value) { store.push_back(view(value)); }, argument.value());
  }
  try {
    return fmt::vformat(fmt::string_view(pattern.data(), pattern.size()), store);
  } catch (const fmt::format_error&) {
    return std::string(pattern);
  }
}

}  // namespace agspeed
