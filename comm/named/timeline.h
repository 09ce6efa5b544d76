// SPDX-License-Identifier: Apache-2.0
// Timeline: what happens to named operations, as a file for chrome://tracing or Perfetto, in Horovod's format.
//
// Every name is a process of the trace: NEGOTIATE_ALLREDUCE from the first rank's request to the coordinator's
// response, with an event per rank; then ALLREDUCE, and in it what Horovod calls activities: QUEUE,
// MEMCPY_IN_FUSION_BUFFER, GLOO_ALLREDUCE (its name of a transfer between hosts' memories), MEMCPY_OUT_FUSION_BUFFER.
// Times are microseconds since the file was opened. The rank of the coordinator writes it (rank 0).
//
// A file that cannot be written any more is left as it is. Thread-safety: all functions, from any thread; none waits
// for the disk but close() and the destructor. Ownership: shared; writing goes on after the last group has let go.
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

namespace agspeed::comm {

class Timeline {
 public:
  /// Puts a new file in place of what has that name. `marksCycles`: each response is marked as Horovod marks its
  /// cycles.
  static StatusOr<std::shared_ptr<Timeline>> open(const std::string& path, bool marksCycles);
  ~Timeline();

  /// A rank has requested this: a "NEGOTIATE_..." begins with the first. Null, or a join: nothing is written.
  void requested(int rank, const Request* request);
  void negotiated(const std::string& name);
  void begin(const std::string& name, std::string_view activity);
  void end(const std::string& name);
  void markCycle();

  /// Whether enough has come together to be written.
  bool isFull();
  /// Writes it; waits for the disk.
  void flush();
  /// Writes what there is and ends the file; what comes later is dropped.
  void close();

 private:
  Timeline(std::FILE* file, bool marksCycles);
  /// Appends an event of the name, which is made known first. Require: mutex_.
  void add(const std::string& name, std::string_view phase, std::string_view activity);
  void addText(std::string_view text);
  int64_t microseconds() const;

  const bool marksCycles_;
  const Clock::time_point openedAt_ = Clock::now();
  std::mutex writeMutex_;  ///< before mutex_; keeps texts in order
  std::FILE* file_;        ///< guarded by writeMutex_; null once closed
  std::mutex mutex_;
  std::string text_;
  bool isClosed_ = false;
  std::unordered_map<std::string, int> numbers_;  ///< of names: processes of the trace
  std::unordered_set<std::string> negotiated_;    ///< names that are being negotiated
};

}  // namespace agspeed::comm
