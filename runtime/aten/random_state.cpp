// SPDX-License-Identifier: Apache-2.0
#include "runtime/aten/random_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <torch/library.h>

#include <mutex>

namespace agspeed::runtime::aten {
namespace {

at::Tensor stateOf(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void setState(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

at::Tensor exchangeRandomState(const at::Tensor& state) {
  at::Tensor before = randomState();
  setState(at::detail::getDefaultCPUGenerator(), state);
  return before;
}

}  // namespace

at::Tensor randomState() { return stateOf(at::detail::getDefaultCPUGenerator()); }

RandomState RandomState::now(std::optional<c10::Device> device) {
  RandomState state;
  state.cpu_ = randomState();
  if (!device || device->is_cpu()) return state;
  try {
    state.onDevice_ = stateOf(at::globalContext().defaultGenerator(*device));
    state.device_ = device;
  } catch (const c10::Error&) {
    state.device_.reset();
  }
  return state;
}

void RandomState::restore() const {
  if (cpu_.defined()) setState(at::detail::getDefaultCPUGenerator(), cpu_);
  if (device_) setState(at::globalContext().defaultGenerator(*device_), onDevice_);
}

RandomStateScope::RandomStateScope(const RandomState& state) {
  if (!state.isDefined()) return;
  before_ = RandomState::now(state.device());
  state.restore();
}

RandomStateScope::~RandomStateScope() { before_.restore(); }

TORCH_LIBRARY_FRAGMENT(agspeed, library) {
  library.def("random_state() -> Tensor");
  library.def("exchange_random_state(Tensor state) -> Tensor");
  library.impl("random_state", c10::DispatchKey::CompositeExplicitAutograd, randomState);
  library.impl("exchange_random_state", c10::DispatchKey::CompositeExplicitAutograd, exchangeRandomState);
}

}  // namespace agspeed::runtime::aten
