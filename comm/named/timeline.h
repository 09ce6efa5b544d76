// SPDX-License-Identifier: Apache-2.0
// Timeline: writes the events of named operations to a file for chrome://tracing or Perfetto, in Horovod's format.
//
// Every name is a process of the trace. An all-reduce is shown by two events. NEGOTIATE_ALLREDUCE lasts from the first
// rank's request to the coordinator's response, with an event per rank. ALLREDUCE follows and contains the activities
// of Horovod: QUEUE, MEMCPY_IN_FUSION_BUFFER, GLOO_ALLREDUCE (Horovod's name for a transfer between host memories),
// MEMCPY_OUT_FUSION_BUFFER. Times are microseconds since the file was opened. The coordinator's rank (rank 0) writes
// the file.
//
// If writing to the file fails, the events are lost, without an error. Thread-safety: all functions, from any thread.
// Only flush(), close() and the destructor wait for the disk. Ownership: shared; a queued flush() may outlive the last
// group.
#pragma once

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "comm/io/clock.h"
#include "comm/named/request.h"
#include "runtime/base/status.h"

namespace agspeed::comm::named {

class Timeline {
 public:
  /// Creates the file and replaces an existing one of that name. `marksCycles`: markCycle() writes an event for each
  /// response, as Horovod does for each of its cycles.
  static StatusOr<std::shared_ptr<Timeline>> open(const std::string& path, bool marksCycles);
  ~Timeline();

  /// Records a rank's request. The first request of a name begins a "NEGOTIATE_..." event. Writes nothing for null or a
  /// join.
  void requested(int rank, const Request* request);
  /// Ends the "NEGOTIATE_..." event of the name, because the coordinator has responded.
  void negotiated(const std::string& name);
  /// begin() starts an activity of the named operation `name`. end() ends the innermost activity that is open for it.
  void begin(const std::string& name, std::string_view activity);
  void end(const std::string& name);
  /// Writes an event for a response if open() was called with `marksCycles`.
  void markCycle();

  /// Whether flush() is due, because the timeline has collected much text.
  bool isFull();
  /// Writes the collected text to the file; waits for the disk.
  void flush();
  /// Writes the remaining text and closes the file. Later events are dropped.
  void close();

 private:
  Timeline(std::FILE* file, bool marksCycles);
  /// Appends an event of the name. If the name is new, first appends the metadata that declares it as a process.
  /// Requires: mutex_.
  void add(const std::string& name, std::string_view phase, std::string_view activity);
  void addText(std::string_view text);
  int64_t microseconds() const;

  const bool marksCycles_;
  const io::Clock::time_point openedAt_ = io::Clock::now();
  std::mutex writeMutex_;  ///< lock it before mutex_, so that texts are written in order
  std::FILE* file_;        ///< guarded by writeMutex_; null once closed
  std::mutex mutex_;
  std::string text_;
  bool isClosed_ = false;
  std::unordered_map<std::string, int> numbers_;  ///< process number of each name in the trace
  std::unordered_set<std::string> negotiating_;   ///< names that are requested and have no response yet
};

}  // namespace agspeed::comm::named
