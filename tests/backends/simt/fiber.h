// SPDX-License-Identifier: Apache-2.0
// Fiber: a separate stack on which a function runs until it switches back. A switch takes a few instructions on x86-64,
// and uses POSIX contexts elsewhere. A fiber belongs to the thread that runs it first. It may be freed whenever it is
// not running; objects on its stack are then not destroyed.
#pragma once

#include <cstddef>
#include <memory>

namespace agspeed::simt {

class Fiber {
 public:
  /// `body` must not return: it ends by switching back for the last time.
  explicit Fiber(void (*body)());
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Runs the fiber until it calls switchBack().
  void resume();
  /// Called on the fiber.
  void switchBack();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace agspeed::simt
