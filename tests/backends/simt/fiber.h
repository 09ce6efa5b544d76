// SPDX-License-Identifier: Apache-2.0
// Fiber: a stack of its own on which a function runs until it switches back. A few instructions a switch on x86-64,
// POSIX contexts elsewhere. A fiber belongs to the thread that runs it first; it may be freed at any time it is not
// running, and what lives on its stack is then dropped.
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
