// SPDX-License-Identifier: Apache-2.0
#include "comm/schedule/symbols.h"
#include "runtime/base/format.h"

namespace agspeed::comm::schedule {

Symbol SymbolTable::intern(Kind kind, uint32_t a, uint32_t b) {
  const Formula formula(kind, a, b);
  const auto [at, isNew] = symbols_.emplace(formula, static_cast<Symbol>(formulas_.size() + 1));
  if (isNew) formulas_.push_back(formula);
  return at->second;
}

std::map<SymbolTable::Formula, int> SymbolTable::leaves(Symbol symbol) const {
  if (symbol == kNoSymbol) return {};
  const auto [kind, a, b] = formulas_[symbol - 1];
  if (kind == Kind::kLeaf) return {{formulas_[symbol - 1], 1}};
  auto found = leaves(a);
  if (kind == Kind::kResult) ++found[{Kind::kResult, 0, 0}];
  if (kind == Kind::kMerge) {
    for (const auto& [formula, count] : leaves(b)) found[formula] += count;
  }
  return found;
}

std::string SymbolTable::text(Symbol symbol) const {
  if (symbol == kNoSymbol) return "nothing";
  const auto [kind, a, b] = formulas_[symbol - 1];
  if (kind == Kind::kLeaf) return formatText("{}.{}", a, b);
  if (kind == Kind::kResult) return "result(" + text(a) + ")";
  return "(" + text(a) + " + " + text(b) + ")";
}

}  // namespace agspeed::comm::schedule
