// SPDX-License-Identifier: Apache-2.0
// Random clusters of every shape and dtype that kernels support, with memory to launch them on.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "compiler/graph/cluster.h"
#include "runtime/executable.h"

namespace agspeed::backends::testing {

enum class Arithmetic : uint8_t {
  kExact,  ///< small whole numbers stay whole and small, so any order of additions gives the same bits
  kAny,    ///< also uses functions with long code
};

compiler::Cluster randomCluster(uint64_t seed, Arithmetic arithmetic);

/// Sizes, strides and memory of a launch. Rows are padded and start at odd addresses, so that accesses are unaligned
/// and writes outside an operand are found.
class RandomLaunch {
 public:
  RandomLaunch(const compiler::Cluster& cluster, uint64_t seed);

  int64_t extent() const { return extent_; }
  /// Runs [begin, end) of the first kernel on this launch's memory.
  void run(const runtime::KernelLibrary& library, int64_t begin, int64_t end);
  void run(const runtime::KernelLibrary& library) { run(library, 0, extent_); }
  /// Returns "", or the first output element that differs. The sign of a zero does not count.
  std::string differenceFrom(const RandomLaunch& expected) const;
  bool hasSameBytes(const RandomLaunch& other) const { return buffers_ == other.buffers_; }
  std::string describe() const;

 private:
  void addOperand(const compiler::ClusterOperand& operand, std::mt19937_64& random);

  compiler::Cluster cluster_;
  std::vector<int64_t> outerSizes_;
  int64_t columns_ = 0;
  int64_t blockRows_ = 0;
  int64_t extent_ = 0;
  std::vector<int64_t> integers_;
  std::vector<std::vector<std::byte>> buffers_;
  std::vector<size_t> starts_;  ///< bytes from a buffer's begin to the operand's first element
};

}  // namespace agspeed::backends::testing
