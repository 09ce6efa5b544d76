// SPDX-License-Identifier: Apache-2.0
// PassTrace: writes files about one run of a pipeline to the dump folder, for people to read. They hold the result of
// each pass, or "(unchanged)" if the pass changed nothing, and the time that each pass took. PassTrace does nothing if
// there is no dump folder.
//
// Each graph or kernel has one trace, which one thread uses. Compilation goes on if a file cannot be written.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

namespace agspeed::passes {

class PassTrace {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// Files are named <dumpDir>/<stem><number>-<pass><extension> and <dumpDir>/<stem>timings.txt.
  PassTrace(std::string dumpDir, std::string stem, std::string extension);

  /// Writes the result of a pass. Calls `print` only if there is a dump folder.
  void dump(std::string_view pass, const std::function<std::string()>& print);

  /// Records that the pass ran from `begin` until now.
  void addTiming(std::string_view pass, TimePoint begin);

  /// Writes the file of timings: one line "<pass> <milliseconds>" per addTiming().
  void dumpTimings() const;

  /// Writes <dumpDir>/<stem><name>. Returns the path, or an empty string if there is no dump folder or the file cannot
  /// be written.
  std::string writeFile(std::string_view name, std::string_view text) const;

 private:
  std::string dumpDir_;
  std::string stem_;
  std::string extension_;
  std::string timings_;
  std::string lastDump_;
  int numDumps_ = 0;
};

}  // namespace agspeed::passes
