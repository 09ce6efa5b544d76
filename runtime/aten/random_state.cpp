// SPDX-License-Identifier: Apache-2.0
#include "runtime/aten/random_state.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>

namespace agspeed::runtime::aten {

at::Tensor randomState() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void setRandomState(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

RandomStateScope::RandomStateScope(const at::Tensor& state) {
  if (!state.defined()) return;
  before_ = randomState();
  setRandomState(state);
}

RandomStateScope::~RandomStateScope() {
  if (before_.defined()) setRandomState(before_);
}

}  // namespace agspeed::runtime::aten
