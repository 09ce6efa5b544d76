// SPDX-License-Identifier: Apache-2.0
// SymExpr: an integer known only when a region's inputs arrive, e.g. the size "4*s0" of a dimension.
//
// Text form (GraphSpec uses it): integers, symbols s<index>, + - *, // (floor), %, max(a,b), min(a,b), parentheses.
// Values are immutable and share their nodes: copying is cheap, any thread may evaluate.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/status.h"

namespace agspeed {

class SymExpr {
 public:
  enum class Kind : uint8_t { kConstant, kSymbol, kAdd, kMul, kFloorDiv, kMod, kMax, kMin };

  SymExpr() : SymExpr(0) {}
  SymExpr(int64_t constant);
  /// The index-th symbol of a region.
  static SymExpr symbol(int index);
  /// Errors: kInvalidArgument naming the offending text and column.
  static StatusOr<SymExpr> parse(std::string_view text);

  bool isConstant() const;
  /// Requires: isConstant().
  int64_t constant() const;
  /// Value for the given symbol values. Errors: kInvalidArgument for an unbound symbol, a
  /// division by zero or a value outside int64.
  StatusOr<int64_t> evaluate(std::span<const int64_t> symbols) const;
  /// Canonical text: equal expressions built the same way print the same, and parse() reads it back.
  std::string toString() const;
  /// Adds the indices of the symbols used to `found`.
  void addSymbolsTo(std::set<int>& found) const;
  /// Largest symbol index used, or -1.
  int maxSymbol() const;

  friend SymExpr operator+(const SymExpr& a, const SymExpr& b);
  friend SymExpr operator-(const SymExpr& a, const SymExpr& b);
  friend SymExpr operator*(const SymExpr& a, const SymExpr& b);
  friend SymExpr floorDiv(const SymExpr& a, const SymExpr& b);
  friend SymExpr mod(const SymExpr& a, const SymExpr& b);
  friend SymExpr max(const SymExpr& a, const SymExpr& b);
  friend SymExpr min(const SymExpr& a, const SymExpr& b);
  /// Structural equality of the canonical text.
  friend bool operator==(const SymExpr& a, const SymExpr& b);

 private:
  struct Node;
  explicit SymExpr(std::shared_ptr<const Node> node);
  static SymExpr make(Kind kind, const SymExpr& a, const SymExpr& b);
  std::shared_ptr<const Node> node_;
};

}  // namespace agspeed
