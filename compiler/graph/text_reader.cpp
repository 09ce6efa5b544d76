// SPDX-License-Identifier: Apache-2.0
#include "compiler/graph/text_reader.h"

#include <cctype>
#include <charconv>

namespace agspeed::compiler {
namespace {

bool isWordCharacter(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.'; }

bool isPrefixToken(std::string_view token) { return token == "n" || token == "s" || token == "%"; }

}  // namespace

void TextReader::skipBlanks() {
  while (at_ < text_.size()) {
    bool isComment = text_[at_] == '#' || text_.substr(at_, 2) == "//";
    if (isComment) {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else if (std::isspace(static_cast<unsigned char>(text_[at_]))) {
      ++at_;
    } else {
      return;
    }
  }
}

bool TextReader::accept(std::string_view token) {
  skipBlanks();
  if (text_.substr(at_, token.size()) != token) return false;
  size_t end = at_ + token.size();
  bool splitsWord = isWordCharacter(token.back()) && end < text_.size() && isWordCharacter(text_[end]);
  if (splitsWord && !isPrefixToken(token)) return false;
  at_ = end;
  return true;
}

Status TextReader::expect(std::string_view token) {
  return accept(token) ? Status() : fail("expected '" + std::string(token) + "'");
}

bool TextReader::atEnd() {
  skipBlanks();
  return at_ == text_.size();
}

StatusOr<std::string> TextReader::readWord() {
  skipBlanks();
  size_t begin = at_;
  while (at_ < text_.size() && isWordCharacter(text_[at_])) ++at_;
  if (at_ == begin) return fail("expected a name");
  return std::string(text_.substr(begin, at_ - begin));
}

StatusOr<std::string> TextReader::readString() {
  AG_RETURN_IF_ERROR(expect("\""));
  std::string result;
  while (at_ < text_.size() && text_[at_] != '"') {
    if (text_[at_] == '\\') ++at_;
    if (at_ < text_.size()) result += text_[at_++];
  }
  if (at_ == text_.size()) return fail("unterminated string");
  ++at_;
  return result;
}

template <typename T>
StatusOr<T> TextReader::readNumber(std::string_view what) {
  skipBlanks();
  T value = 0;
  auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
  if (error != std::errc()) return fail(formatText("expected {}", what));
  at_ = static_cast<size_t>(end - text_.data());
  return value;
}

StatusOr<int64_t> TextReader::readInteger() { return readNumber<int64_t>("an integer"); }

StatusOr<double> TextReader::readDouble() { return readNumber<double>("a number"); }

StatusOr<DType> TextReader::readDType() {
  AG_ASSIGN_OR_RETURN(std::string name, readWord());
  std::optional<DType> dtype = dtypeFromString(name);
  if (!dtype) return fail("\"" + name + "\" is not a dtype");
  return *dtype;
}

StatusOr<SymExpr> TextReader::readSymExpr() {
  skipBlanks();
  size_t begin = at_;
  int depth = 0;
  for (; at_ < text_.size(); ++at_) {
    char c = text_[at_];
    bool isEnd = c == '\n' || c == ';' || c == ']' || c == '}' || c == ',' || c == ')';
    if (depth == 0 && isEnd) break;
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
  }
  std::string_view text = text_.substr(begin, at_ - begin);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  StatusOr<SymExpr> result = SymExpr::parse(text);
  if (!result.hasValue()) return fail(result.status().message());
  return result;
}

StatusOr<std::vector<SymExpr>> TextReader::readSymExprs(std::string_view open, std::string_view close) {
  AG_RETURN_IF_ERROR(expect(open));
  std::vector<SymExpr> result;
  while (!accept(close)) {
    if (!result.empty()) AG_RETURN_IF_ERROR(expect(","));
    AG_ASSIGN_OR_RETURN(SymExpr item, readSymExpr());
    result.push_back(std::move(item));
  }
  return result;
}

Status TextReader::fail(std::string_view what) const {
  size_t line = 1;
  size_t column = 1;
  for (size_t i = 0; i < at_ && i < text_.size(); ++i) {
    bool isNewline = text_[i] == '\n';
    line += isNewline;
    column = isNewline ? 1 : column + 1;
  }
  return invalidArgument("line {}, column {}: {}", line, column, what);
}

std::string formatDouble(double value) {
  char buffer[32];
  auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return std::string(buffer, end);
}

std::string formatString(std::string_view text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

}  // namespace agspeed::compiler
