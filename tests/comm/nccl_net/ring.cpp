// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/nccl_net/ring.h"

#include <sched.h>

#include <algorithm>
#include <chrono>

namespace agspeed::comm::nccl {

bool Stream::advance() {
  bool hasMoved = false;
  while (!waiting_.empty() && underWay_.size() < mostUnderWay_) {
    const std::span<std::byte> bytes = std::as_writable_bytes(waiting_.front().memory());
    underWay_.push_back(
        {isSending_ ? side_.send(comm_, bytes) : side_.receive(comm_, {bytes}), std::move(waiting_.front().arrived)});
    waiting_.pop_front();
    hasMoved = true;
  }
  if (underWay_.empty()) return hasMoved;
  Pending& oldest = underWay_.front().pending;
  requireOk(side_.table().test(oldest.request, oldest.isDone, oldest.sizes.data()), "test");
  if (!oldest.isDone) return hasMoved;
  const std::function<void()> arrived = std::move(underWay_.front().arrived);
  underWay_.pop_front();
  if (arrived) arrived();
  return true;
}

void drive(std::span<Stream* const> streams) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(40);
  while (!std::all_of(streams.begin(), streams.end(), [](const Stream* each) { return each->isDone(); })) {
    require(std::chrono::steady_clock::now() < limit, "the operation had no end in 40 s");
    bool hasMoved = false;
    for (Stream* each : streams) hasMoved = each->advance() || hasMoved;
    if (!hasMoved) sched_yield();
  }
}

Floats inputOf(size_t rank, size_t count) {
  Floats values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>((rank * 31 + i * 7 + i / 1000) % 97);
  return values;
}

Floats sumOfInputs(size_t size, size_t count) {
  Floats sum(count);
  for (size_t rank = 0; rank < size; ++rank) {
    const Floats input = inputOf(rank, count);
    for (size_t i = 0; i < count; ++i) sum[i] += input[i];
  }
  return sum;
}

Ring::Ring(Group& group, size_t count, const Slicing& slicing)
    : group_(group), size_(group.size()), slicing_(slicing), input_(inputOf(group.rank(), count)), values_(input_) {
  int numDevices = 1;
  requireOk(next().table().devices(numDevices), "devices");
  for (size_t i = 0; i < slicing.numConnections; ++i) lanes_.push_back(open(static_cast<int>(i) % numDevices));
}

Side& Ring::next() { return group_.side((group_.rank() + 1) % size_); }

Ring::Lane Ring::open(int device) {
  Side& previous = group_.side((group_.rank() + size_ - 1) % size_);
  void *send = nullptr, *receive = nullptr;
  // The first rank listens first. If all ranks connected first, all would wait for ever.
  if (group_.rank() == 0) receive = previous.openReceive(nullptr, device);
  send = next().openSend(device);
  if (group_.rank() != 0) receive = previous.openReceive(nullptr, device);
  const std::vector<Floats> buffers(slicing_.mostUnderWay, Floats(slicing_.numFloats));
  return {.send = send,
          .receive = receive,
          .outBuffers = buffers,
          .inBuffers = buffers,
          .out = Stream(next(), send, true, slicing_.mostUnderWay),
          .in = Stream(previous, receive, false, slicing_.mostUnderWay)};
}

std::span<float> Ring::chunk(size_t index) {
  const size_t length = values_.size() / size_, at = index % size_;
  const size_t end = at + 1 == size_ ? values_.size() : (at + 1) * length;
  return std::span(values_).subspan(at * length, end - at * length);
}

size_t Ring::numSlices() const {
  const size_t longest = values_.size() - (size_ - 1) * (values_.size() / size_);
  return (longest + slicing_.numFloats - 1) / slicing_.numFloats;
}

std::span<float> Ring::slice(size_t chunkIndex, size_t index) {
  const std::span<float> all = chunk(chunkIndex);
  const size_t begin = std::min(index * slicing_.numFloats, all.size());
  return all.subspan(begin, std::min(slicing_.numFloats, all.size() - begin));
}

void Ring::send(size_t step, size_t index) {
  Lane& lane = lanes_[index % lanes_.size()];
  lane.out.add([this, &lane, from = slice(group_.rank() + 2 * size_ - step, index)] {
    Floats& buffer = lane.outBuffers[lane.numSent++ % lane.outBuffers.size()];
    std::copy(from.begin(), from.end(), buffer.begin());
    return std::span(buffer).first(from.size());
  });
}

void Ring::receive(size_t step, size_t index, size_t endStep) {
  Lane& lane = lanes_[index % lanes_.size()];
  const std::span<float> to = slice(group_.rank() + 2 * size_ - step - 1, index);
  const auto memory = [&lane, to] {
    return std::span(lane.inBuffers[lane.numReceived++ % lane.inBuffers.size()]).first(to.size());
  };
  lane.in.add(memory, [this, &lane, to, step, index, endStep] {
    const Floats& buffer = lane.inBuffers[lane.numArrived++ % lane.inBuffers.size()];
    const bool isReduced = step + 1 < size_;
    for (size_t at = 0; at < to.size(); ++at) to[at] = isReduced ? to[at] + buffer[at] : buffer[at];
    if (step + 1 < endStep) send(step + 1, index);
  });
}

void Ring::run(size_t firstStep, size_t endStep) {
  std::vector<Stream*> streams;
  for (Lane& lane : lanes_) streams.insert(streams.end(), {&lane.in, &lane.out});
  for (size_t step = firstStep; step < endStep; ++step) {
    for (size_t index = 0; index < numSlices(); ++index) receive(step, index, endStep);
  }
  for (size_t index = 0; index < numSlices(); ++index) send(firstStep, index);
  drive(streams);
}

void Ring::close() {
  for (const Lane& lane : lanes_) {
    requireOk(next().table().closeSend(lane.send), "closeSend");
    requireOk(next().table().closeReceive(lane.receive), "closeRecv");
  }
}

}  // namespace agspeed::comm::nccl
