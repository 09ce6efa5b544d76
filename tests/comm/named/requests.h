// SPDX-License-Identifier: Apache-2.0
// Requests and groups of named operations for tests: ranks as threads over loopback.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/messaging/loopback_messenger.h"
#include "comm/named/named_group.h"

namespace agspeed::comm::named {

inline Request requestFor(std::string name, Dimensions shape = {4}, NamedKind kind = NamedKind::kAllReduce) {
  Request request;
  request.kind = kind;
  request.dtype = DType::kF32;
  request.isCacheable = true;
  request.name = std::move(name);
  request.shapes = {std::move(shape)};
  return request;
}

/// Named groups of `size` ranks.
class NamedRanks {
 public:
  explicit NamedRanks(int size, NamedOptions options = {}) : network(size, {}) {
    options.group.id = 1;
    options.group.timeout = std::chrono::seconds(60);
    options.messageId = 2;
    for (int rank = 0; rank < size; ++rank) {
      engines.push_back(std::make_unique<engine::Engine>(network.messenger(rank)));
      groups.push_back(NamedGroup::create(*engines.back(), options).value());
    }
  }

  /// Calls `body` for every rank, each in a thread of its own.
  void run(const std::function<void(int rank, NamedGroup& group)>& body) {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < groups.size(); ++rank) {
      threads.emplace_back([&, rank] { body(static_cast<int>(rank), *groups[rank]); });
    }
    for (auto& thread : threads) thread.join();
  }

  messaging::LoopbackGroup network;
  std::vector<std::unique_ptr<engine::Engine>> engines;
  std::vector<std::unique_ptr<NamedGroup>> groups;
};

/// An operation on floats that a test can wait for.
struct Started {
  std::vector<std::vector<float>> inputs, outputs;
  StatusOr<NamedHandle> handle = internalError("not started");

  Status wait() { return handle.hasValue() ? (*handle)->wait() : handle.status(); }
};

/// Starts the operation with these inputs. Its outputs are new buffers.
inline std::unique_ptr<Started> start(NamedGroup& group, Request request, std::vector<std::vector<float>> inputs) {
  auto started = std::make_unique<Started>();
  started->inputs = std::move(inputs);
  NamedCall call;
  for (auto& each : started->inputs) call.inputs.push_back(std::as_writable_bytes(std::span(each)));
  const NamedKind kind = request.kind;
  if (kind == NamedKind::kAllReduce || kind == NamedKind::kBroadcast) {
    for (auto& each : started->inputs) started->outputs.emplace_back(each.size());
    for (auto& each : started->outputs) call.outputs.push_back(std::as_writable_bytes(std::span(each)));
  } else {
    call.allocate = [raw = started.get(),
                     shapes = request.shapes](const Dimensions& rows) -> StatusOr<engine::BufferList> {
      engine::BufferList bytes;
      for (size_t i = 0; i < rows.size(); ++i) {
        raw->outputs.emplace_back(static_cast<size_t>(rows[i] * elementsPerRow(shapes[i])));
      }
      for (auto& each : raw->outputs) bytes.push_back(std::as_writable_bytes(std::span(each)));
      return bytes;
    };
  }
  call.request = std::move(request);
  started->handle = group.start(std::move(call));
  return started;
}

}  // namespace agspeed::comm::named
