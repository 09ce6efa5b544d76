// SPDX-License-Identifier: Apache-2.0
// SymbolTable: represents values as formulas, for the verifier. Equal formulas have equal symbols, so comparing two
// symbols compares whole formulas. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace agspeed::comm::schedule {

using Symbol = uint32_t;
/// The value of memory that was never written.
inline constexpr Symbol kNoSymbol = 0;

class SymbolTable {
 public:
  /// Returns the value of `chunk` in the input of `rank`.
  Symbol leaf(int rank, uint32_t chunk) { return intern(Kind::kLeaf, static_cast<uint32_t>(rank), chunk); }
  /// Returns the value of "left op right". Requires: neither is kNoSymbol.
  Symbol merge(Symbol left, Symbol right) { return intern(Kind::kMerge, left, right); }
  /// Returns `value`, rounded to the type of the final result.
  Symbol result(Symbol value) { return intern(Kind::kResult, value, 0); }

  /// Returns whether both formulas have the same leaves, each the same number of times, and the same number of
  /// roundings, in any order.
  bool hasSameLeaves(Symbol a, Symbol b) const { return leaves(a) == leaves(b); }
  /// Returns the formula as text: "result((0.2 + 1.2))". A leaf is its rank and chunk.
  std::string text(Symbol symbol) const;

 private:
  enum class Kind : uint8_t { kLeaf, kMerge, kResult };
  using Formula = std::tuple<Kind, uint32_t, uint32_t>;

  Symbol intern(Kind kind, uint32_t a, uint32_t b);
  std::map<Formula, int> leaves(Symbol symbol) const;

  std::map<Formula, Symbol> symbols_;
  std::vector<Formula> formulas_;
};

}  // namespace agspeed::comm::schedule
