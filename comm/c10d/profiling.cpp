// SPDX-License-Identifier: Apache-2.0
#include "comm/c10d/profiling.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/record_function.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agspeed::comm::c10d {
namespace {

struct Event {
  explicit Event(at::StepCallbacks&& callbacks) : function(std::move(callbacks)) {}

  std::string title;
  std::vector<c10::IValue> inputs;  ///< `function` keeps references to these values
  at::RecordFunction function;
};

}  // namespace

std::function<void()> beginEvent(std::string_view name, at::TensorList inputs) {
  std::optional<at::StepCallbacks> callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
  if (!callbacks.has_value()) return nullptr;
  const auto event = std::make_shared<Event>(*std::move(callbacks));
  event->title = "agspeed:" + std::string(name);
  event->inputs.assign(inputs.begin(), inputs.end());
  event->function._setAsync();
  event->function.before(event->title, c10::ArrayRef<const c10::IValue>(event->inputs.data(), event->inputs.size()));
  return at::wrapPropagateTLSState([event] { event->function.end(); });
}

}  // namespace agspeed::comm::c10d
