// SPDX-License-Identifier: Apache-2.0
// Properties of SymExpr, checked on random expressions against a reference in 128-bit arithmetic. A failure prints the
// seed; kSeed below repeats it.
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "runtime/base/sym_expr.h"

namespace agspeed {
namespace {

constexpr uint32_t kSeed = 20240611;
constexpr int kNumExpressions = 3000;
constexpr int kNumSymbols = 3;
constexpr int64_t kMinimum = std::numeric_limits<int64_t>::min();
constexpr int64_t kMaximum = std::numeric_limits<int64_t>::max();

// An expression and its value, which is nullopt if a step divides by zero or leaves int64.
struct Sample {
  SymExpr expression;
  std::optional<int64_t> value;
};

std::optional<int64_t> narrowed(__int128 value) {
  if (value < kMinimum || value > kMaximum) return std::nullopt;
  return static_cast<int64_t>(value);
}

std::optional<int64_t> referenceFloorDiv(int64_t a, int64_t b) {
  if (b == 0) return std::nullopt;
  __int128 quotient = static_cast<__int128>(a) / b;
  if (static_cast<__int128>(a) % b != 0 && (a < 0) != (b < 0)) --quotient;
  return narrowed(quotient);
}

std::optional<int64_t> referenceMod(int64_t a, int64_t b) {
  if (b == 0) return std::nullopt;
  __int128 remainder = static_cast<__int128>(a) % b;
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  return narrowed(remainder);
}

class Generator {
 public:
  explicit Generator(uint32_t seed) : random_(seed) {
    for (int i = 0; i < kNumSymbols; ++i) symbols_.push_back(pick(1, 64));
  }

  const std::vector<int64_t>& symbols() const { return symbols_; }

  Sample sample(int depth) {
    if (depth == 0 || pick(0, 4) == 0) return leaf();
    Sample a = sample(depth - 1);
    Sample b = sample(depth - 1);
    std::optional<int64_t> x = b.value ? a.value : std::nullopt;
    int64_t y = b.value.value_or(0);
    switch (pick(0, 6)) {
      case 0: return {a.expression + b.expression, x ? narrowed(__int128(*x) + y) : x};
      case 1: return {a.expression - b.expression, x ? narrowed(__int128(*x) - y) : x};
      case 2: return {a.expression * b.expression, x ? narrowed(__int128(*x) * y) : x};
      case 3: return {floorDiv(a.expression, b.expression), x ? referenceFloorDiv(*x, y) : x};
      case 4: return {mod(a.expression, b.expression), x ? referenceMod(*x, y) : x};
      case 5: return {max(a.expression, b.expression), x ? std::max(*x, y) : x};
      default: return {min(a.expression, b.expression), x ? std::min(*x, y) : x};
    }
  }

 private:
  int64_t pick(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }

  Sample leaf() {
    if (pick(0, 1) == 0) {
      int64_t index = pick(0, kNumSymbols - 1);
      return {SymExpr::symbol(static_cast<int>(index)), symbols_[static_cast<size_t>(index)]};
    }
    int64_t constant = pick(-9, 9);
    return {SymExpr(constant), constant};
  }

  std::mt19937 random_;
  std::vector<int64_t> symbols_;
};

TEST(SymExpr, RandomExpressionsEvaluateLikeTheReference) {
  for (uint32_t i = 0; i < kNumExpressions; ++i) {
    Generator generator(kSeed + i);
    Sample sample = generator.sample(/*depth=*/5);
    StatusOr<int64_t> value = sample.expression.evaluate(generator.symbols());
    SCOPED_TRACE("seed " + std::to_string(kSeed + i) + ": " + sample.expression.toString());
    ASSERT_EQ(value.hasValue(), sample.value.has_value()) << value.status().toString();
    if (value.hasValue()) {
      ASSERT_EQ(*value, *sample.value);
    }
  }
}

TEST(SymExpr, RandomExpressionsReadBackFromTheirText) {
  for (uint32_t i = 0; i < kNumExpressions; ++i) {
    SymExpr expression = Generator(kSeed + i).sample(/*depth=*/5).expression;
    StatusOr<SymExpr> again = SymExpr::parse(expression.toString());
    ASSERT_TRUE(again.hasValue()) << "seed " << kSeed + i << ": " << again.status().toString();
    ASSERT_EQ(again->toString(), expression.toString()) << "seed " << kSeed + i;
    ASSERT_EQ(again->maxSymbol(), expression.maxSymbol()) << "seed " << kSeed + i;
  }
}

TEST(SymExpr, SymbolsAreThoseThatTheValueDependsOn) {
  std::set<int> found = {7};
  SymExpr::parse("3*s0 + max(s10, s3 % s0) // 4").value().addSymbolsTo(found);
  EXPECT_EQ(found, (std::set<int>{0, 3, 7, 10}));
  SymExpr(5).addSymbolsTo(found);
  EXPECT_EQ(found.size(), 4u);
}

TEST(SymExpr, ConstantsReadBackOverTheWholeRange) {
  for (int64_t value : {kMinimum, kMinimum + 1, int64_t{-1}, int64_t{0}, kMaximum}) {
    StatusOr<SymExpr> parsed = SymExpr::parse(SymExpr(value).toString());
    ASSERT_TRUE(parsed.hasValue()) << parsed.status().toString();
    EXPECT_EQ(parsed->constant(), value);
  }
}

TEST(SymExpr, PrecedenceIsThatOfPython) {
  auto evaluated = [](std::string_view text) {
    StatusOr<SymExpr> parsed = SymExpr::parse(text);
    if (!parsed.hasValue()) throw std::runtime_error(parsed.status().toString());
    return *parsed->evaluate(std::vector<int64_t>{7, 3});
  };
  EXPECT_EQ(evaluated("1 + 2*s0"), 15);
  EXPECT_EQ(evaluated("s0 - s1 - 1"), 3);
  EXPECT_EQ(evaluated("-s0 // 2"), -4);
  EXPECT_EQ(evaluated("-s0 % 4"), 1);
  EXPECT_EQ(evaluated("max(s0, 10) // min(s1, 4)"), 3);
  EXPECT_EQ(evaluated("(s0 + 1) * (s1 - 1)"), 16);
  EXPECT_EQ(evaluated("- -s1"), 3);
}

TEST(SymExpr, ConstantsFoldAndNeutralElementsDisappear) {
  SymExpr s0 = SymExpr::symbol(0);
  EXPECT_EQ((SymExpr(2) + SymExpr(3)).constant(), 5);
  EXPECT_EQ(s0 + 0, s0);
  EXPECT_EQ(SymExpr(1) * s0, s0);
  EXPECT_EQ(floorDiv(s0, 1), s0);
  EXPECT_FALSE(s0 + 1 == s0);
}

TEST(SymExpr, WhatHasNoValueIsAnErrorAndNotUndefined) {
  const std::vector<int64_t> symbols = {kMaximum, kMinimum, 0};
  for (const char* text :
       {"s0 + 1", "s0 * 2", "s1 // -1", "s0 // s2", "s0 % s2", "9223372036854775807 + 1", "4 // 0"}) {
    StatusOr<SymExpr> parsed = SymExpr::parse(text);
    ASSERT_TRUE(parsed.hasValue()) << text;
    StatusOr<int64_t> value = parsed->evaluate(symbols);
    EXPECT_EQ(value.status().code(), StatusCode::kInvalidArgument) << text;
  }
  EXPECT_EQ(*mod(SymExpr::symbol(1), -1).evaluate(symbols), 0);
}

TEST(SymExpr, AnUnboundSymbolIsNamed) {
  StatusOr<int64_t> value = (SymExpr::symbol(2) + 1).evaluate(std::vector<int64_t>{1, 2});
  ASSERT_FALSE(value.hasValue());
  EXPECT_NE(value.status().message().find("s2"), std::string::npos) << value.status().message();
}

TEST(SymExpr, MalformedTextIsAnErrorThatNamesTheColumn) {
  for (const char* text : {"", " ", "s", "s-1", "1 +", "(1", "1)", "max(1)", "max(1,2", "2 ** 3", "s0 s1", "foo", "1.5",
                           "9223372036854775808", "s99999999999", "-", "/ 2", "1 / 2", "\t1"}) {
    StatusOr<SymExpr> parsed = SymExpr::parse(text);
    ASSERT_EQ(parsed.status().code(), StatusCode::kInvalidArgument) << '"' << text << '"';
    EXPECT_NE(parsed.status().message().find("column"), std::string::npos) << parsed.status().message();
  }
}

TEST(SymExpr, HostileDepthIsAnErrorAndNotAStackOverflow) {
  std::string chain = "s0";
  for (int i = 0; i < 100000; ++i) chain += "+s0";
  for (const std::string& text : {std::string(100000, '('), std::string(100000, '-'), chain}) {
    EXPECT_EQ(SymExpr::parse(text).status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(SymExpr, RandomBytesNeverCrashTheParser) {
  constexpr std::string_view kAlphabet = "0123456789s+-*/%(), maxin";
  std::mt19937 random(kSeed);
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (size_t length = random() % 24; text.size() < length;) text += kAlphabet[random() % kAlphabet.size()];
    StatusOr<SymExpr> parsed = SymExpr::parse(text);
    if (parsed.hasValue()) {
      EXPECT_TRUE(SymExpr::parse(parsed->toString()).hasValue()) << '"' << text << '"';
    }
  }
}

}  // namespace
}  // namespace agspeed
