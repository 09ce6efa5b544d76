// SPDX-License-Identifier: Apache-2.0
// PassTrace: what one run of a pipeline leaves for people to read: the result of each pass ("(unchanged)" when it did
// nothing) and how long each took, as files in the dump folder. Without a dump folder it does nothing.
//
// One trace per graph or kernel, used by one thread. A file that cannot be written is no error of the compilation.
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

  /// `print` is called only if its text is wanted.
  void dump(std::string_view pass, const std::function<std::string()>& print);

  /// The pass ran from `begin` until now.
  void addTiming(std::string_view pass, TimePoint begin);

  /// One line "<pass> <milliseconds>" per addTiming().
  void dumpTimings() const;

  /// Writes <dumpDir>/<stem><name>. Returns the path, or empty when there is no dump folder or it cannot be written.
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
