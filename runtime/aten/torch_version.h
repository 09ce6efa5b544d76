// SPDX-License-Identifier: Apache-2.0
// Differences between the releases of torch that this code is built against, 2.11 to 2.15. Each difference has a name
// here, so that other code does not test versions.
//
// Autograd nodes are owned by std::shared_ptr up to 2.12, and by c10::intrusive_ptr from 2.13 on.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/headeronly/version.h>

#include <memory>
#include <utility>

static_assert(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 11, "agspeed needs torch 2.11 or later");

namespace agspeed::runtime::aten {

#if TORCH_VERSION_MINOR >= 13

/// A counted reference to an autograd node of type T.
template <typename T>
using NodePointer = c10::intrusive_ptr<T>;

/// A new node. Long chains of nodes are freed without recursion.
template <typename T, typename... Arguments>
NodePointer<T> makeNode(Arguments&&... arguments) {
  return c10::make_intrusive<T>(std::forward<Arguments>(arguments)...);
}

#else

template <typename T>
using NodePointer = std::shared_ptr<T>;

template <typename T, typename... Arguments>
NodePointer<T> makeNode(Arguments&&... arguments) {
  return NodePointer<T>(new T(std::forward<Arguments>(arguments)...), torch::autograd::deleteNode);
}

#endif

}  // namespace agspeed::runtime::aten
