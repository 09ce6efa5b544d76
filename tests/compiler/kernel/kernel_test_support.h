// SPDX-License-Identifier: Apache-2.0
// Common parts of the kernel tests: a builder of clusters, operand buffers with a layout, a scalar interpreter as the
// oracle, and the comparison of the two.
//
// The interpreter works on one element at a time, in double or int64, and rounds to the node's dtype after every node.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "compiler/graph/cluster.h"
#include "compiler/kernel/kernel_library.h"
#include "runtime/executable.h"

namespace agspeed::compiler::testing {

using Columns = ClusterOperand::Columns;

/// Appends to a cluster; every method returns the index of the new node.
class ClusterBuilder {
 public:
  explicit ClusterBuilder(int outerRank) { cluster_.outerRank = outerRank; }
  int load(DType dtype, Columns columns = Columns::kContiguous);
  int constant(DType dtype, double value);
  int cast(int input, DType dtype) { return node(PointwiseOp::kCast, dtype, {input}); }
  int node(PointwiseOp op, DType dtype, std::vector<int32_t> inputs);
  /// Makes an element node, even if its input is a row node.
  int castToElement(int input, DType dtype);
  void store(int node, Columns columns = Columns::kContiguous);
  const Cluster& cluster() const { return cluster_; }

 private:
  Cluster cluster_;
};

/// A number of any dtype: floats use f (exact for the dtype), integers and bool use i.
struct Scalar {
  double f = 0;
  int64_t i = 0;
};

Scalar readScalar(DType dtype, const std::byte* at);
void writeScalar(DType dtype, std::byte* at, Scalar value);
Scalar castScalar(Scalar value, DType from, DType to);
std::string print(DType dtype, Scalar value);

/// Returns a test value. Difficult values come first (zeros, infinities, NaN, subnormals, limits), in all pairings of
/// the first two inputs. Random values of mixed magnitude follow. `input` is the number of the input within the
/// problem.
Scalar testValue(DType dtype, int64_t index, int input, std::mt19937_64& random);

/// A cluster with sizes and operand memory. Rows are padded, strided columns are 3 apart, and transposed columns are 3
/// further apart than necessary, so that writes outside the elements are found.
class Problem {
 public:
  Problem(const Cluster& cluster, std::vector<int64_t> outerSizes, int64_t columns, uint64_t seed);

  const Cluster& cluster() const { return cluster_; }
  int64_t extent() const;
  int64_t numRows() const;
  int64_t columns() const { return columns_; }
  std::vector<std::byte>& bytes(int operand) { return buffers_[owner_[operand]]; }
  const std::vector<std::byte>& bytes(int operand) const { return buffers_[owner_[operand]]; }
  int64_t offset(int operand, int64_t row, int64_t column) const;  ///< in elements
  Scalar at(int operand, int64_t row, int64_t column) const;
  void set(int operand, int64_t row, int64_t column, Scalar value);
  /// Makes the output share the input's memory.
  void alias(int output, int input) { owner_[output] = input; }

  /// Runs the kernel on each slice in turn.
  void run(runtime::KernelFunction kernel, const std::vector<std::pair<int64_t, int64_t>>& slices);
  void run(runtime::KernelFunction kernel) { run(kernel, {{0, extent()}}); }
  /// Runs the oracle.
  void interpret();

 private:
  std::vector<int64_t> coordinates(int64_t row) const;

  Cluster cluster_;
  std::vector<int64_t> outerSizes_;
  int64_t columns_;
  std::vector<std::vector<int64_t>> outerStrides_;
  std::vector<int64_t> columnStrides_;
  std::vector<std::vector<std::byte>> buffers_;
  std::vector<int> owner_;  ///< the operand whose buffer each operand uses
};

struct Tolerance {
  int64_t ulps = 0;     ///< 0: equal, including the signs of zeros
  double relative = 0;  ///< relative to the larger magnitude
  double absolute = 0;
  bool ignoresZeroSign = false;
};

/// Returns "" if all outputs agree, padding included, or a description of the first difference.
std::string compare(const Problem& actual, const Problem& expected, const Tolerance& tolerance);

/// Distance in units in the last place; 0 for two NaNs.
int64_t ulpsBetween(DType dtype, Scalar a, Scalar b);

/// Returns the error allowed to an operation: 0 if it is exact or correctly rounded.
Tolerance toleranceOf(PointwiseOp op);

/// Compiles the clusters without a cache; fails the test on error.
std::shared_ptr<const runtime::KernelLibrary> build(const std::vector<Cluster>& clusters);

}  // namespace agspeed::compiler::testing
