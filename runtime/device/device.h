// SPDX-License-Identifier: Apache-2.0
// Device: where instructions run. Streams order work, events order streams, a clock measures what a device really
// spent.
//
// The host device runs everything at once, in program order: its streams and events have nothing to wait for. Devices
// with queues implement the same interface, and Instruction::stream, waitEvent and recordEvent index into it.
// Thread-safety: a Device may be used by several threads; a Stream and an Event by one at a time. A Device outlives the
// streams and events it made.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "runtime/base/status.h"
#include "runtime/device/clock.h"

namespace agspeed::runtime {

/// A point in a stream.
class Event {
 public:
  virtual ~Event() = default;
};

/// An ordered queue of work.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Marks the present end of the queue.
  virtual Status record(Event& event) = 0;
  /// Later work of this stream starts after the event's.
  virtual Status wait(const Event& event) = 0;
  /// Blocks the calling thread until the queue is empty.
  virtual Status synchronize() = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;  ///< "cpu"
  virtual int32_t numStreams() const = 0;     ///< streams that really run side by side
  virtual StatusOr<std::unique_ptr<Stream>> newStream() = 0;
  virtual StatusOr<std::unique_ptr<Event>> newEvent() = 0;
  virtual const Clock& clock() const = 0;
};

}  // namespace agspeed::runtime
