// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/sym_expr.h"
#include "runtime/base/format.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <optional>

namespace agspeed {

struct SymExpr::Node {
  Kind kind;
  int64_t value = 0;  // the constant, or the symbol's index
  std::shared_ptr<const Node> left;
  std::shared_ptr<const Node> right;
};

namespace {

// Parsing, evaluating and printing recurse. This bound keeps untrusted text from overflowing a thread's stack.
constexpr int kMaxFactors = 1000;
constexpr int64_t kMaxSymbolIndex = 1 << 20;

// Requires: b != 0, and not INT64_MIN / -1.
int64_t floorDivide(int64_t a, int64_t b) {
  int64_t quotient = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? quotient - 1 : quotient;
}

// The result, or nullopt for a division by zero or a value outside int64.
std::optional<int64_t> apply(SymExpr::Kind kind, int64_t a, int64_t b) {
  constexpr int64_t kMinimum = std::numeric_limits<int64_t>::min();
  int64_t result = 0;
  switch (kind) {
    case SymExpr::Kind::kAdd: return __builtin_add_overflow(a, b, &result) ? std::nullopt : std::optional(result);
    case SymExpr::Kind::kMul: return __builtin_mul_overflow(a, b, &result) ? std::nullopt : std::optional(result);
    case SymExpr::Kind::kFloorDiv:
      return (b == 0 || (a == kMinimum && b == -1)) ? std::nullopt : std::optional(floorDivide(a, b));
    case SymExpr::Kind::kMod:
      if (b == 0) return std::nullopt;
      return b == -1 ? 0 : a - floorDivide(a, b) * b;
    case SymExpr::Kind::kMax: return std::max(a, b);
    case SymExpr::Kind::kMin: return std::min(a, b);
    default: return std::nullopt;
  }
}

// Recursive descent over the text form; `at` is the next unread character.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  StatusOr<SymExpr> parseAll() {
    AG_ASSIGN_OR_RETURN(SymExpr result, parseSum());
    skipSpace();
    if (at_ != text_.size()) return fail("unexpected text");
    return result;
  }

 private:
  StatusOr<SymExpr> parseSum() {
    AG_ASSIGN_OR_RETURN(SymExpr left, parseProduct());
    while (true) {
      if (accept("+")) {
        AG_ASSIGN_OR_RETURN(SymExpr right, parseProduct());
        left = left + right;
      } else if (accept("-")) {
        AG_ASSIGN_OR_RETURN(SymExpr right, parseProduct());
        left = left - right;
      } else {
        return left;
      }
    }
  }

  StatusOr<SymExpr> parseProduct() {
    AG_ASSIGN_OR_RETURN(SymExpr left, parseFactor());
    while (true) {
      if (accept("//")) {
        AG_ASSIGN_OR_RETURN(SymExpr right, parseFactor());
        left = floorDiv(left, right);
      } else if (accept("*")) {
        AG_ASSIGN_OR_RETURN(SymExpr right, parseFactor());
        left = left * right;
      } else if (accept("%")) {
        AG_ASSIGN_OR_RETURN(SymExpr right, parseFactor());
        left = mod(left, right);
      } else {
        return left;
      }
    }
  }

  StatusOr<SymExpr> parseFactor() {
    if (++numFactors_ > kMaxFactors) return fail("expression too long");
    if (accept("-")) return parseNegated();
    if (accept("(")) {
      AG_ASSIGN_OR_RETURN(SymExpr inner, parseSum());
      if (!accept(")")) return fail("expected ')'");
      return inner;
    }
    if (accept("max(")) return parseCall(/*isMax=*/true);
    if (accept("min(")) return parseCall(/*isMax=*/false);
    if (accept("s")) {
      AG_ASSIGN_OR_RETURN(int64_t index, parseInteger(/*sign=*/1));
      if (index > kMaxSymbolIndex) return fail("symbol index too large");
      return SymExpr::symbol(static_cast<int>(index));
    }
    AG_ASSIGN_OR_RETURN(int64_t value, parseInteger(/*sign=*/1));
    return SymExpr(value);
  }

  // A literal is read together with its sign, because the smallest int64 has no positive counterpart.
  StatusOr<SymExpr> parseNegated() {
    skipSpace();
    if (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]))) {
      AG_ASSIGN_OR_RETURN(int64_t value, parseInteger(/*sign=*/-1));
      return SymExpr(value);
    }
    AG_ASSIGN_OR_RETURN(SymExpr operand, parseFactor());
    return SymExpr(-1) * operand;
  }

  StatusOr<SymExpr> parseCall(bool isMax) {
    AG_ASSIGN_OR_RETURN(SymExpr a, parseSum());
    if (!accept(",")) return fail("expected ','");
    AG_ASSIGN_OR_RETURN(SymExpr b, parseSum());
    if (!accept(")")) return fail("expected ')'");
    return isMax ? max(a, b) : min(a, b);
  }

  StatusOr<int64_t> parseInteger(int sign) {
    skipSpace();
    size_t begin = at_;
    int64_t value = 0;
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]))) {
      int64_t digit = sign * (text_[at_] - '0');
      if (__builtin_mul_overflow(value, int64_t{10}, &value) || __builtin_add_overflow(value, digit, &value)) {
        return fail("integer too large");
      }
      ++at_;
    }
    if (at_ == begin) return fail("expected an integer or a symbol");
    return value;
  }

  bool accept(std::string_view token) {
    skipSpace();
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }

  void skipSpace() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  Status fail(std::string_view what) const {
    return invalidArgument("size expression \"{}\", column {}: {}", text_, at_ + 1, what);
  }

  std::string_view text_;
  size_t at_ = 0;
  int numFactors_ = 0;
};

}  // namespace

SymExpr::SymExpr(int64_t constant) : node_(std::make_shared<const Node>(Node{Kind::kConstant, constant, {}, {}})) {}
SymExpr::SymExpr(std::shared_ptr<const Node> node) : node_(std::move(node)) {}

SymExpr SymExpr::symbol(int index) { return SymExpr(std::make_shared<const Node>(Node{Kind::kSymbol, index, {}, {}})); }

SymExpr SymExpr::make(Kind kind, const SymExpr& a, const SymExpr& b) {
  // An expression without a value is not folded; evaluate() reports it.
  if (a.isConstant() && b.isConstant()) {
    if (std::optional<int64_t> folded = apply(kind, a.constant(), b.constant())) return SymExpr(*folded);
  }
  if (kind == Kind::kAdd && a.isConstant() && a.constant() == 0) return b;
  if (kind == Kind::kAdd && b.isConstant() && b.constant() == 0) return a;
  if (kind == Kind::kMul && a.isConstant() && a.constant() == 1) return b;
  if (kind == Kind::kMul && b.isConstant() && b.constant() == 1) return a;
  if (kind == Kind::kFloorDiv && b.isConstant() && b.constant() == 1) return a;
  return SymExpr(std::make_shared<const Node>(Node{kind, 0, a.node_, b.node_}));
}

StatusOr<SymExpr> SymExpr::parse(std::string_view text) { return Parser(text).parseAll(); }

bool SymExpr::isConstant() const { return node_->kind == Kind::kConstant; }

int64_t SymExpr::constant() const {
  AG_CHECK(isConstant(), toString());
  return node_->value;
}

StatusOr<int64_t> SymExpr::evaluate(std::span<const int64_t> symbols) const {
  if (node_->kind == Kind::kConstant) return node_->value;
  if (node_->kind == Kind::kSymbol) {
    if (static_cast<size_t>(node_->value) >= symbols.size()) {
      return invalidArgument("symbol s{} has no value: {} symbols are bound", node_->value, symbols.size());
    }
    return symbols[static_cast<size_t>(node_->value)];
  }
  AG_ASSIGN_OR_RETURN(int64_t a, SymExpr(node_->left).evaluate(symbols));
  AG_ASSIGN_OR_RETURN(int64_t b, SymExpr(node_->right).evaluate(symbols));
  if (std::optional<int64_t> result = apply(node_->kind, a, b)) return *result;
  bool divides = node_->kind == Kind::kFloorDiv || node_->kind == Kind::kMod;
  return invalidArgument((divides && b == 0 ? "division by zero in " : "integer overflow in ") + toString());
}

std::string SymExpr::toString() const {
  switch (node_->kind) {
    case Kind::kConstant: return std::to_string(node_->value);
    case Kind::kSymbol: return formatText("s{}", node_->value);
    default: break;
  }
  std::string a = SymExpr(node_->left).toString();
  std::string b = SymExpr(node_->right).toString();
  switch (node_->kind) {
    case Kind::kAdd: return "(" + a + " + " + b + ")";
    case Kind::kMul: return "(" + a + " * " + b + ")";
    case Kind::kFloorDiv: return "(" + a + " // " + b + ")";
    case Kind::kMod: return "(" + a + " % " + b + ")";
    case Kind::kMax: return "max(" + a + ", " + b + ")";
    default: return "min(" + a + ", " + b + ")";
  }
}

void SymExpr::addSymbolsTo(std::set<int>& found) const {
  if (node_->kind == Kind::kConstant) return;
  if (node_->kind == Kind::kSymbol) {
    found.insert(static_cast<int>(node_->value));
    return;
  }
  SymExpr(node_->left).addSymbolsTo(found);
  SymExpr(node_->right).addSymbolsTo(found);
}

int SymExpr::maxSymbol() const {
  if (node_->kind == Kind::kConstant) return -1;
  if (node_->kind == Kind::kSymbol) return static_cast<int>(node_->value);
  return std::max(SymExpr(node_->left).maxSymbol(), SymExpr(node_->right).maxSymbol());
}

SymExpr operator+(const SymExpr& a, const SymExpr& b) { return SymExpr::make(SymExpr::Kind::kAdd, a, b); }
SymExpr operator-(const SymExpr& a, const SymExpr& b) { return a + SymExpr(-1) * b; }
SymExpr operator*(const SymExpr& a, const SymExpr& b) { return SymExpr::make(SymExpr::Kind::kMul, a, b); }
SymExpr floorDiv(const SymExpr& a, const SymExpr& b) { return SymExpr::make(SymExpr::Kind::kFloorDiv, a, b); }
SymExpr mod(const SymExpr& a, const SymExpr& b) { return SymExpr::make(SymExpr::Kind::kMod, a, b); }
SymExpr max(const SymExpr& a, const SymExpr& b) { return SymExpr::make(SymExpr::Kind::kMax, a, b); }
SymExpr min(const SymExpr& a, const SymExpr& b) { return SymExpr::make(SymExpr::Kind::kMin, a, b); }
bool operator==(const SymExpr& a, const SymExpr& b) { return a.toString() == b.toString(); }

}  // namespace agspeed
