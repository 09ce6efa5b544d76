// SPDX-License-Identifier: Apache-2.0
// The statistics that the tuner uses. Step times have heavy tails, bursts and two modes. So nothing here assumes a
// distribution: there are medians, quantiles, order-statistic intervals, and one bootstrap with a fixed seed.
//
// Pure functions and small values; no global state, safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace agspeed::runtime::tune {

/// Interpolates linearly between order statistics. Requires: values not empty, 0 <= fraction <= 1.
double quantile(std::vector<double> values, double fraction);
double median(std::vector<double> values);

/// An estimate with a range that contains the true value with the requested confidence.
struct Interval {
  double low = -std::numeric_limits<double>::infinity();
  double estimate = std::numeric_limits<double>::quiet_NaN();
  double high = std::numeric_limits<double>::infinity();
  int32_t count = 0;

  /// Infinite if there are too few values.
  double halfWidth() const { return (high - low) / 2; }
  bool isBounded() const { return halfWidth() < std::numeric_limits<double>::infinity(); }
};

/// The quantile z with P(|Z| <= z) = confidence for a standard normal Z.
double twoSidedNormalQuantile(double confidence);

/// Median with the interval [x(l), x(n+1-l)], l = floor((n - z sqrt(n)) / 2). This inverts the sign test and is valid
/// for any distribution. Unbounded while l < 1 (below 11 values at 99 %).
Interval medianInterval(std::vector<double> values, double confidence);

/// Returns the lower end of the interval of a - b, at the confidence of a and b. The squared distances from the ends to
/// the estimates add up (method of variance estimates recovery). Requires: measured independently. Minus infinity while
/// either end is unbounded.
double differenceLow(const Interval& a, const Interval& b);

/// Returns a likelihood ratio: P(these signs | 19 of 20 signs are for) / P(these signs | half of them are for). If at
/// least half of all signs are against, it ever exceeds x with a probability of at most 1/x, however often it is
/// checked (a test martingale; Ville's inequality). For example, ten signs in a row, or fifteen with one exception,
/// give 500.
double signEvidence(int32_t numFor, int32_t numAgainst);

/// Ratio of sums (sum of second / sum of first over the pairs), which slow outliers change, with a percentile bootstrap
/// interval over pairs. Deterministic: the resampling seed is fixed. Unbounded below 8 pairs.
Interval sumRatioInterval(const std::vector<std::pair<double, double>>& pairs, double confidence);

/// The last `capacity` values and their median. Cost: add O(1), median O(capacity).
class RollingWindow {
 public:
  explicit RollingWindow(size_t capacity = 64) : capacity_(capacity) {}
  void add(double value);
  void clear();
  size_t size() const { return values_.size(); }
  bool empty() const { return values_.empty(); }
  /// Requires: not empty.
  double median() const;
  const std::vector<double>& values() const { return values_; }

 private:
  size_t capacity_;
  size_t next_ = 0;
  std::vector<double> values_;
};

}  // namespace agspeed::runtime::tune
