// SPDX-License-Identifier: Apache-2.0
// Accuracy of the vector functions in units in the last place, against libm in long double. The limits are the table in
// passes/kernel/vector_math.h. Set AG_PRINT_ULPS to print the measured values.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "kernel_test_support.h"

namespace agspeed::compiler::testing {
namespace {

using Op = PointwiseOp;
using Exact = long double (*)(long double);

struct Case {
  Op op;
  Exact exact;
  double low;
  double high;
  double ulps32;
  double ulps64;
};

void PrintTo(const Case& c, std::ostream* out) { *out << infoOf(c.op).name; }

long double exactRsqrt(long double x) { return 1 / std::sqrt(x); }
long double exactSigmoid(long double x) { return 1 / (1 + std::exp(-x)); }

// Results are normal numbers in these intervals. pointwise_test.cpp tests special values.
const Case kCases[] = {
    {Op::kAcos, acosl, -1, 1, 1, 1},
    {Op::kAcosh, acoshl, 1, 1e30, 1, 2},
    {Op::kAsin, asinl, -1, 1, 1, 1},
    {Op::kAsinh, asinhl, -1e30, 1e30, 1, 2},
    {Op::kAtan, atanl, -1e30, 1e30, 1, 1},
    {Op::kAtanh, atanhl, -1, 1, 1, 2},
    {Op::kCos, cosl, -7e4, 7e4, 2, 1},
    {Op::kCosh, coshl, -88, 88, 1, 2},
    {Op::kErf, erfl, -10, 10, 2, 2},
    {Op::kErfc, erfcl, -10, 9, 1, 5},
    {Op::kExp, expl, -87, 88, 1, 1},
    {Op::kExp2, exp2l, -126, 127, 1, 1},
    {Op::kExpm1, expm1l, -87, 88, 2, 2},
    {Op::kLog, logl, 0, 1e38, 1, 1},
    {Op::kLog10, log10l, 0, 1e38, 1, 2},
    {Op::kLog1p, log1pl, -1, 1e38, 2, 2},
    {Op::kLog2, log2l, 0, 1e38, 1, 1},
    {Op::kRsqrt, exactRsqrt, 0, 1e38, 1.5, 1.5},
    {Op::kSigmoid, exactSigmoid, -80, 80, 3, 3},
    {Op::kSin, sinl, -7e4, 7e4, 2, 1},
    {Op::kSinh, sinhl, -88, 88, 1, 2},
    {Op::kTan, tanl, -7e4, 7e4, 4, 1},
    {Op::kTanh, tanhl, -20, 20, 3, 3},
};

class VectorMath : public ::testing::TestWithParam<Case> {};

// Values between low and high: half of them uniform, half spread over all magnitudes.
std::vector<double> inputsOf(const Case& c, DType dtype, std::mt19937_64& random) {
  std::vector<double> values;
  std::uniform_real_distribution<double> uniform(c.low, c.high);
  std::uniform_real_distribution<double> exponent(-40, std::log2(std::max(std::fabs(c.low), std::fabs(c.high))));
  while (values.size() < 200000) {
    double x = random() % 2 ? uniform(random) : std::exp2(exponent(random)) * (random() % 2 ? 1 : -1);
    if (random() % 8 == 0) x = 1 + (random() % 2 ? 1 : -1) * std::exp2(exponent(random));  // near 1, where logs vanish
    if (dtype == DType::kF32) x = static_cast<float>(x);
    if (x >= c.low && x <= c.high) values.push_back(x);
  }
  return values;
}

// |actual - exact| in units of the last place of the result.
double ulpError(DType dtype, double actual, long double exact) {
  if (std::isnan(exact) || std::isinf(exact)) return std::isnan(actual) == std::isnan(exact) ? 0 : 1e30;
  int digits = dtype == DType::kF32 ? 24 : 53;
  int smallest = dtype == DType::kF32 ? -149 : -1074;
  int exponent = exact == 0 ? smallest : std::max(std::ilogb(exact) - digits + 1, smallest);
  return static_cast<double>(std::fabs(actual - exact) / std::ldexp(1.0L, exponent));
}

double worstError(const Case& c, DType dtype, double* worstInput) {
  ClusterBuilder builder(0);
  builder.store(builder.node(c.op, dtype, {builder.load(dtype)}));
  auto library = build({builder.cluster()});
  if (!library) return 1e30;
  std::mt19937_64 random(5);
  std::vector<double> inputs = inputsOf(c, dtype, random);
  Problem problem(builder.cluster(), {}, static_cast<int64_t>(inputs.size()), 5);
  for (size_t i = 0; i < inputs.size(); ++i) problem.set(0, 0, i, {inputs[i], 0});
  problem.run(library->kernel(0));
  double worst = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    double error = ulpError(dtype, problem.at(1, 0, i).f, c.exact(inputs[i]));
    if (error > worst) worst = error, *worstInput = inputs[i];
  }
  return worst;
}

TEST_P(VectorMath, StaysWithinItsErrorBound) {
  const Case& c = GetParam();
  for (DType dtype : {DType::kF32, DType::kF64}) {
    double input = 0;
    double worst = worstError(c, dtype, &input);
    EXPECT_LE(worst, dtype == DType::kF32 ? c.ulps32 : c.ulps64)
        << infoOf(c.op).name << " on " << toString(dtype) << " at " << input << ", seed 5";
    if (std::getenv("AG_PRINT_ULPS")) {
      std::printf("%-8s %s %.2f ulp at %g\n", infoOf(c.op).name.data(), toString(dtype).data(), worst, input);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Functions, VectorMath, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(infoOf(info.param.op).name); });

// Arguments beyond the fast range, in every lane and mixed with small ones.
TEST(VectorMathLargeArguments, SinCosTanCallLibm) {
  ClusterBuilder builder(0);
  int x = builder.load(DType::kF32);
  for (Op op : {Op::kSin, Op::kCos, Op::kTan}) builder.store(builder.node(op, DType::kF32, {x}));
  auto library = build({builder.cluster()});
  ASSERT_TRUE(library);
  Problem actual(builder.cluster(), {}, 1000, 5);
  for (int64_t i = 0; i < 1000; ++i) {
    actual.set(0, 0, i, castScalar({std::ldexp(1 + i * 1e-3, static_cast<int>(i % 127)), 0}, DType::kF64, DType::kF32));
  }
  Problem expected = actual;
  actual.run(library->kernel(0));
  expected.interpret();
  EXPECT_EQ(compare(actual, expected, {4, 0, 0, false}), "");
}

}  // namespace
}  // namespace agspeed::compiler::testing
