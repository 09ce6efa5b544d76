// SPDX-License-Identifier: Apache-2.0
// TextReader: reads the tokens of the text forms of graphs and clusters. It skips blanks and comments after '#' or
// '//'. Every failure names line and column. Not thread-safe; does not own the text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/base/status.h"
#include "runtime/base/sym_expr.h"

namespace agspeed::compiler {

struct Cluster;

class TextReader {
 public:
  explicit TextReader(std::string_view text) : text_(text) {}

  /// Consumes the token if it comes next. A token that ends in a letter does not match the front of a longer word,
  /// except for "n", "s" and "%", which prefix numbers and names.
  bool accept(std::string_view token);
  /// Errors (of all read and expect functions): kInvalidArgument with line, column and what was expected.
  Status expect(std::string_view token);
  bool atEnd();
  /// Letters, digits, '_' and '.'.
  StatusOr<std::string> readWord();
  /// A double-quoted string; \" and \\ are its escapes.
  StatusOr<std::string> readString();
  StatusOr<int64_t> readInteger();
  StatusOr<double> readDouble();
  StatusOr<DType> readDType();
  /// A SymExpr up to (not including) the next ',', ';' or closing bracket outside parentheses, or the end of the line.
  StatusOr<SymExpr> readSymExpr();
  /// SymExprs between the two brackets, separated by commas.
  StatusOr<std::vector<SymExpr>> readSymExprs(std::string_view open, std::string_view close);

  Status fail(std::string_view what) const;

 private:
  void skipBlanks();
  template <typename T>
  StatusOr<T> readNumber(std::string_view what);

  std::string_view text_;
  size_t at_ = 0;
};

/// Shortest text that reads back as the same double ("0.5", "inf", "nan").
std::string formatDouble(double value);
/// A double-quoted string that readString() reads back.
std::string formatString(std::string_view text);
/// Reads one cluster. Errors: kInvalidArgument with the place and the broken rule.
StatusOr<Cluster> parseCluster(TextReader& in);

}  // namespace agspeed::compiler
