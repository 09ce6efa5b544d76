// SPDX-License-Identifier: Apache-2.0
#include "tests/backends/simt/fiber.h"

#include <cstdint>
#include <cstdlib>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace agspeed::simt {

namespace {

constexpr size_t kStackBytes = size_t{128} << 10;  // the system provides pages only as they are used

}  // namespace

#if defined(__x86_64__)

// Saves the callee-saved registers on the current stack, and loads them from another stack.
extern "C" void agSimtSwitch(void** from, void* to);
asm(R"(
.text
.type agSimtSwitch, @function
agSimtSwitch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size agSimtSwitch, . - agSimtSwitch
)");

struct Fiber::State {
  void* stack = nullptr;
  void* inside = nullptr;   ///< stack pointer of the fiber while it does not run
  void* outside = nullptr;  ///< stack pointer of its caller while the fiber runs
};

Fiber::Fiber(void (*body)()) : state_(std::make_unique<State>()) {
  constexpr int kSavedRegisters = 6;
  state_->stack = std::malloc(kStackBytes);
  uintptr_t top = (reinterpret_cast<uintptr_t>(state_->stack) + kStackBytes) & ~uintptr_t{15};
  auto* slots = reinterpret_cast<uintptr_t*>(top);
  slots[-1] = 0;  // the return address of body, which never returns
  slots[-2] = reinterpret_cast<uintptr_t>(body);
  for (int i = 0; i < kSavedRegisters; ++i) slots[-3 - i] = 0;
  state_->inside = slots - 2 - kSavedRegisters;
}

Fiber::~Fiber() { std::free(state_->stack); }

void Fiber::resume() { agSimtSwitch(&state_->outside, state_->inside); }
void Fiber::switchBack() { agSimtSwitch(&state_->inside, state_->outside); }

#else

struct Fiber::State {
  void* stack = nullptr;
  ucontext_t inside;
  ucontext_t outside;
};

Fiber::Fiber(void (*body)()) : state_(std::make_unique<State>()) {
  state_->stack = std::malloc(kStackBytes);
  getcontext(&state_->inside);
  state_->inside.uc_stack.ss_sp = state_->stack;
  state_->inside.uc_stack.ss_size = kStackBytes;
  makecontext(&state_->inside, body, 0);
}

Fiber::~Fiber() { std::free(state_->stack); }

void Fiber::resume() { swapcontext(&state_->outside, &state_->inside); }
void Fiber::switchBack() { swapcontext(&state_->inside, &state_->outside); }

#endif

}  // namespace agspeed::simt
