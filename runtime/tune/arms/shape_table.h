// SPDX-License-Identifier: Apache-2.0
// ShapeTable: the shape classes of a training loop by number, and everything that follows from them: the length of a
// run that meets them all, eager's peak of memory per class, and whether steps can be compared at all.
//
//   table.indexOf("8x128") == 0, table.indexOf("4x128") == 1, table.indexOf("8x128") == 0
//
// Not thread-safe; owned by the Tuner.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

namespace agspeed::runtime::tune {

class ShapeTable {
 public:
  /// The number of a shape class; a new class gets the next one.
  int32_t indexOf(const std::string& shape);
  /// In the order of their numbers.
  const std::vector<std::string>& names() const { return names_; }

  /// A step finished. `isUsable`: it counts, or it ran beside a compile, where no step counts.
  void addStep(bool isUsable) { numUncounted_ = isUsable ? 0 : numUncounted_ + 1; }
  /// Whether no step has counted for long, because every batch has its own shape or every step is disturbed.
  bool isIncomparable() const;

  /// Steps of a run that meets every shape if batches of different shapes alternate. In a shorter run shapes and blocks
  /// might stay aligned, and each side would see shapes that the other never sees.
  int32_t minRunSteps() const;
  /// Further steps for each run of the block that begins. If a run does not meet every shape, runs differ in length, so
  /// that a fixed order of shapes does not align with blocks.
  int32_t takeExtraSteps();

  /// An undisturbed eager step had this peak; 0 = not measured.
  void addEagerPeak(int32_t shape, int64_t bytes);
  /// An arm was loaded. It holds memory, which raises eager's later peaks, so peaks known by then stay.
  void armLoaded() { hasLoaded_ = true; }
  /// Eager's peak by shape class.
  std::map<int32_t, int64_t> eagerPeaks() const;

 private:
  struct EagerPeak {
    int64_t bytes = 0;
    bool isFromBeforeLoad = false;
  };

  std::unordered_map<std::string, int32_t> indices_;
  std::vector<std::string> names_;
  std::map<int32_t, EagerPeak> eagerPeaks_;
  bool hasLoaded_ = false;
  int32_t numBlocks_ = 0;     ///< blocks begun while there were too many shapes for one run
  int32_t numUncounted_ = 0;  ///< steps in a row that did not count, except during compiles
};

}  // namespace agspeed::runtime::tune
