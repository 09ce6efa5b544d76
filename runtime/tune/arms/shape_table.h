// SPDX-License-Identifier: Apache-2.0
// ShapeTable: numbers the shape classes of a training loop. It also derives from them the length of a run that has
// steps of every class, eager's peak of memory per class, and whether steps can be compared at all.
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
  /// Returns the number of a shape class. A new class gets the next number.
  int32_t indexOf(const std::string& shape);
  /// Returns the shape classes in the order of their numbers.
  const std::vector<std::string>& names() const { return names_; }

  /// Records a step. `isUsable`: the step counts, or it ran during a compile, when no step counts.
  void addStep(bool isUsable) { numUncounted_ = isUsable ? 0 : numUncounted_ + 1; }
  /// Whether no step has counted for long, because every batch has its own shape or every step is disturbed.
  bool isIncomparable() const;

  /// Returns the number of steps of a run that has every shape if batches of different shapes alternate. In shorter
  /// runs, one arm might always get one shape and the other arm another shape.
  int32_t minRunSteps() const;
  /// Returns how many steps to add to each run of the block that begins. If there are too many shapes for one run,
  /// blocks get different lengths, so that a fixed order of shapes does not align with blocks.
  int32_t takeExtraSteps();

  /// Records the peak of memory of an undisturbed eager step; 0: not measured.
  void addEagerPeak(int32_t shape, int64_t bytes);
  /// Records that an arm was loaded. Its memory raises eager's later peaks, so earlier peaks are kept.
  void armLoaded() { hasLoaded_ = true; }
  /// Returns eager's peak by shape class.
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
