// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/measure/statistics.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/check.h"

namespace agspeed::runtime::tune {
namespace {

constexpr int kNumResamples = 400;
constexpr int kMinBootstrapPairs = 8;

/// SplitMix64: a short generator that gives the same numbers on every platform.
class FixedRandom {
 public:
  size_t below(size_t bound) {
    state_ += 0x9e3779b97f4a7c15ull;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return static_cast<size_t>((z ^ (z >> 31)) % bound);
  }

 private:
  uint64_t state_ = 2026;
};

double sumRatio(double first, double second) { return first > 0 ? second / first : 1.0; }

}  // namespace

double quantile(std::vector<double> values, double fraction) {
  AG_CHECK(!values.empty() && fraction >= 0 && fraction <= 1, "quantile needs values and a fraction within [0, 1]");
  const double position = fraction * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(position);
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(below), values.end());
  const double low = values[below];
  if (below + 1 == values.size()) return low;
  const double high = *std::min_element(values.begin() + static_cast<ptrdiff_t>(below) + 1, values.end());
  return low + (position - static_cast<double>(below)) * (high - low);
}

double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

double twoSidedNormalQuantile(double confidence) {
  // Bisection on erf: exact enough, needs no table, and runs a few times per block.
  double low = 0;
  double high = 10;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (std::erf(middle / std::sqrt(2.0)) < confidence ? low : high) = middle;
  }
  return low;
}

Interval medianInterval(std::vector<double> values, double confidence) {
  Interval interval;
  interval.count = static_cast<int32_t>(values.size());
  if (values.empty()) return interval;
  std::sort(values.begin(), values.end());
  const auto n = static_cast<double>(values.size());
  interval.estimate = quantile(values, 0.5);
  const double rank = std::floor((n - twoSidedNormalQuantile(confidence) * std::sqrt(n)) / 2);
  if (rank < 1) return interval;
  const auto index = static_cast<size_t>(rank) - 1;
  interval.low = values[index];
  interval.high = values[values.size() - 1 - index];
  return interval;
}

double differenceLow(const Interval& a, const Interval& b) {
  return a.estimate - b.estimate - std::hypot(a.estimate - a.low, b.high - b.estimate);
}

double signEvidence(int32_t numFor, int32_t numAgainst) {
  constexpr double kShare = 0.95;
  return std::pow(2 * kShare, numFor) * std::pow(2 * (1 - kShare), numAgainst);
}

Interval sumRatioInterval(const std::vector<std::pair<double, double>>& pairs, double confidence) {
  Interval interval;
  interval.count = static_cast<int32_t>(pairs.size());
  double first = 0;
  double second = 0;
  for (const auto& [a, b] : pairs) {
    first += a;
    second += b;
  }
  if (pairs.empty()) return interval;
  interval.estimate = sumRatio(first, second);
  if (interval.count < kMinBootstrapPairs) return interval;
  FixedRandom random;
  std::vector<double> resampled(kNumResamples);
  for (double& ratio : resampled) {
    first = second = 0;
    for (size_t i = 0; i < pairs.size(); ++i) {
      const auto& [a, b] = pairs[random.below(pairs.size())];
      first += a;
      second += b;
    }
    ratio = sumRatio(first, second);
  }
  interval.low = quantile(resampled, (1 - confidence) / 2);
  interval.high = quantile(resampled, (1 + confidence) / 2);
  return interval;
}

void RollingWindow::add(double value) {
  if (values_.size() < capacity_) {
    values_.push_back(value);
    return;
  }
  values_[next_] = value;
  next_ = (next_ + 1) % capacity_;
}

void RollingWindow::clear() {
  values_.clear();
  next_ = 0;
}

double RollingWindow::median() const { return tune::median(values_); }

}  // namespace agspeed::runtime::tune
