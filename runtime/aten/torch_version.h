// SPDX-License-Identifier: Apache-2.0
// Differences between the releases of torch that this code is built against, 2.11 to 2.15. Each difference becomes a
// name here, so that code elsewhere asks for no version.
//
// Until 2.12 a std::shared_ptr owns an autograd node, from 2.13 on a c10::intrusive_ptr does.
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
