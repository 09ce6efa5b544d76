// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/network/network_group.h"

#include <algorithm>
#include <random>

namespace agspeed::comm::network {

NetworkOptions loopbackOptions(int rank, int size, int numRails) {
  NetworkOptions options;
  options.rank = rank;
  options.size = size;
  options.sharesMemory = false;
  for (int rail = 1; rail <= numRails; ++rail) {
    options.rails.push_back({"lo", *topology::parseIpAddress("127.0.0." + std::to_string(rail)), 8, true});
  }
  return options;
}

Parcel::Parcel(int to, wire::MessageId name, size_t size) : storage(size) {
  peer = to;
  id = name;
  bytes = storage;
}

void Parcel::finished(const Status& result) {
  ++numFinished;
  status = result;
}

NetworkGroup::NetworkGroup(int size, int numRails, const Change& change, std::unique_ptr<rendezvous::Store> store)
    : store_(store != nullptr ? std::move(store) : std::make_unique<rendezvous::MemoryStore>()) {
  for (int rank = 0; rank < size; ++rank) {
    NetworkOptions options = loopbackOptions(rank, size, numRails);
    if (change) change(options);
    messengers_.push_back(NetworkMessenger::create(*store_, options).value());
  }
}

bool NetworkGroup::drive(const std::function<bool()>& isDone, std::chrono::milliseconds limit) {
  const io::Clock::time_point end = io::Clock::now() + limit;
  while (!isDone()) {
    if (io::Clock::now() > end) return false;
    for (const auto& messenger : messengers_) {
      if (messenger != nullptr) messenger->progress({});
    }
  }
  return true;
}

std::string NetworkGroup::exchange(int numMessages, size_t maxBytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::unique_ptr<Parcel>> sends;
  std::vector<std::unique_ptr<Parcel>> receives;
  for (int i = 0; i < numMessages; ++i) {
    const auto source = static_cast<int>(random() % static_cast<uint64_t>(size()));
    const auto step = 1 + static_cast<int>(random() % static_cast<uint64_t>(size() - 1));
    const int destination = (source + step) % size();
    const size_t numBytes = random() % 3 == 0 ? random() % (maxBytes + 1) : random() % std::min<size_t>(maxBytes, 3000);
    sends.push_back(std::make_unique<Parcel>(destination, wire::MessageId{1, 2, sequence_}, numBytes));
    receives.push_back(std::make_unique<Parcel>(source, wire::MessageId{1, 2, sequence_++}, numBytes));
    for (std::byte& byte : sends.back()->storage) byte = std::byte(random());
  }
  for (size_t i = 0; i < sends.size(); ++i) {
    const auto send = [&] { (*this)[receives[i]->peer].send(*sends[i]); };
    const bool isSentFirst = random() % 2 == 0;
    if (isSentFirst) send();
    if (random() % 4 == 0) (*this)[0].progress({});
    (*this)[sends[i]->peer].receive(*receives[i]);
    if (!isSentFirst) send();
  }
  const auto isDone = [](const auto& parcel) { return parcel->numFinished > 0; };
  drive([&] {
    return std::all_of(sends.begin(), sends.end(), isDone) && std::all_of(receives.begin(), receives.end(), isDone);
  });
  std::string wrong;
  for (size_t i = 0; i < sends.size(); ++i) {
    const std::string name = "message " + std::to_string(i) + " of " + std::to_string(sends[i]->storage.size()) +
                             " bytes, rank " + std::to_string(receives[i]->peer) + " to " +
                             std::to_string(sends[i]->peer) + ": ";
    for (const Parcel* parcel : {sends[i].get(), receives[i].get()}) {
      if (parcel->numFinished != 1) wrong += name + "finished " + std::to_string(parcel->numFinished) + " times\n";
      if (!parcel->status.isOk()) wrong += name + parcel->status.toString() + "\n";
    }
    if (sends[i]->storage != receives[i]->storage) wrong += name + "other bytes\n";
  }
  return wrong;
}

}  // namespace agspeed::comm::network
