// SPDX-License-Identifier: Apache-2.0
// InspectionPoint: a local socket that returns what a rank waits for, while the job runs. `agspeed comm inspect`
// connects to it.
//
// The socket is an abstract one (comm/transport/shm/local_socket.h), so it needs no folder and leaves no file behind.
// Programs find the names of all points in /proc/net/unix. The name also identifies the rank if its process does not
// answer:
//
//   agspeed-inspect-JOB-RANK-SIZE-RANDOM    JOB is empty until the ranks have agreed on it
//
// Because of the random digits, other users cannot occupy a name before the rank does. A connection is the whole
// request: the point sends one document and closes the connection. It reads nothing, and it refuses processes of other
// users, except root.
//
// Threading: one thread of its own, which sleeps until a process connects. Ownership: the destructor ends the thread,
// and waits until an answer in progress is sent.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "comm/io/file_descriptor.h"
#include "comm/world/inspection.h"

namespace agspeed::comm::world {

class InspectionPoint {
 public:
  /// Opens the point of a rank. `describe` returns the document, and is called on the point's thread. Returns null, and
  /// logs why, if the system cannot make a socket or a thread. The rank then works without a point.
  static std::unique_ptr<InspectionPoint> open(const WorldIdentity& identity, std::function<std::string()> describe);
  ~InspectionPoint();
  InspectionPoint(const InspectionPoint&) = delete;

  /// Returns whether the calling thread is the point's own, on which the destructor must not run.
  bool isOwnThread() const { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  InspectionPoint(io::FileDescriptor listener, io::FileDescriptor stop, std::function<std::string()> describe);

  void serve();
  void answer(const io::FileDescriptor& connection);

  const io::FileDescriptor listener_;
  const io::FileDescriptor stop_;  ///< becomes readable when the thread must end
  const std::function<std::string()> describe_;
  std::thread thread_;
};

}  // namespace agspeed::comm::world
