// SPDX-License-Identifier: Apache-2.0
// formatText("rank {} of {}: {:.2f} s", rank, size, seconds): makes text from a pattern in fmt's language (Python's,
// C++20's).
//
// The compiler checks that the pattern has as many fields as arguments. An argument is a number, a bool, a text, or a
// type with a toString() beside it. The header hides the fmt library, because torch's headers include another version
// of fmt and every file includes this header. Thread-safe.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

namespace agspeed {

/// The value of one field. A text is copied only if it is a temporary.
class FormatArgument {
 public:
  using Value = std::variant<bool, int64_t, uint64_t, double, std::string_view, std::string>;

  FormatArgument(bool value) : value_(value) {}
  template <std::signed_integral T>
  FormatArgument(T value) : value_(static_cast<int64_t>(value)) {}
  template <std::unsigned_integral T>
    requires(!std::same_as<T, bool>)
  FormatArgument(T value) : value_(static_cast<uint64_t>(value)) {}
  template <std::floating_point T>
  FormatArgument(T value) : value_(static_cast<double>(value)) {}
  template <typename T>
    requires std::convertible_to<const T&, std::string_view>
  FormatArgument(const T& text) : value_(std::string_view(text)) {}
  template <typename T>
    requires requires(const T& value) { toString(value); } && (!std::is_arithmetic_v<T>)
  FormatArgument(const T& value) : value_(std::string(toString(value))) {}

  const Value& value() const { return value_; }

 private:
  Value value_;
};

/// A pattern for arguments of these types. It compiles only if it has one field for each argument.
template <typename... Args>
class FormatPattern {
 public:
  template <size_t numChars>
  consteval FormatPattern(const char (&text)[numChars]) : text_(text, numChars - 1) {
    if (countFields(text_) != sizeof...(Args)) throw "the pattern needs one {} for each argument";
  }
  std::string_view text() const { return text_; }

 private:
  static consteval size_t countFields(std::string_view text) {
    size_t count = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const bool isDoubled = i + 1 < text.size() && text[i + 1] == text[i];
      if (text[i] == '{' && !isDoubled) ++count;
      if ((text[i] == '{' || text[i] == '}') && isDoubled) ++i;
    }
    return count;
  }

  std::string_view text_;
};

/// Implements formatText() after the pattern was checked. A field that does not fit its argument ("{:d}" for a text)
/// returns the pattern itself, so that an error message never becomes another error.
std::string formatArguments(std::string_view pattern, std::initializer_list<FormatArgument> arguments);

template <typename... Args>
std::string formatText(FormatPattern<std::type_identity_t<Args>...> pattern, const Args&... arguments) {
  return formatArguments(pattern.text(), {FormatArgument(arguments)...});
}
/// For a text without fields.
inline std::string formatText(std::string text) { return text; }

}  // namespace agspeed
