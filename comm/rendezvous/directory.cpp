// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/directory.h"

#include <algorithm>
#include <utility>

#include "comm/wire/byte_io.h"
#include "runtime/base/log.h"

namespace agspeed::comm::rendezvous {

std::string Directory::recordKey(uint32_t epoch, int rank) { return formatText("agspeed/{}/rank/{}", epoch, rank); }

Directory::Directory(Store& store, DirectoryOptions options) : Directory(std::move(options)) {
  store_ = &store;
  lookup_.emplace(store.reader());
}

Directory::Directory(DirectoryOptions options)
    : options_(std::move(options)), names_(options_.names), keys_(security::KeyPair::generate()) {}

Status Directory::publish(std::vector<RailAddress> rails) {
  rails_ = std::move(rails);
  PeerRecord record;
  record.protection = options_.protection;
  record.epoch = options_.epoch;
  record.rank = static_cast<uint32_t>(options_.rank);
  record.worldSize = static_cast<uint32_t>(options_.size);
  record.publicKey = keys_.publicKey();
  record.rails = rails_;
  record_ = encodePeerRecord(record, options_.key);
  if (store_ == nullptr) return {};
  const std::string key = recordKey(options_.epoch, options_.rank);
  AG_ASSIGN_OR_RETURN(const int64_t numStarts, store_->add(key + "/starts", 1));
  if (numStarts != 1) {
    return invalidArgument("{} was started twice in epoch {}: every process of the job needs a rank of its own",
                           names_.of(options_.rank), options_.epoch);
  }
  return store_->set(key, record_);
}

void Directory::introduce(int rank, std::string name, const std::string& record) {
  names_.set(rank, std::move(name));
  Entry& entry = entries_[rank];
  if (!entry.peer && !entry.failure) (void)add(rank, entry, record);
}

StatusOr<const Peer*> Directory::find(int rank, TimePoint now) {
  Entry& entry = entries_[rank];
  if (entry.peer) return &*entry.peer;
  if (entry.failure) return *entry.failure;
  if (!entry.wantedSince) entry.wantedSince = now;
  if (store_ != nullptr) return lookUp(rank, entry, now);
  entry.nextTry = nextRetry(*entry.wantedSince, now);
  warnOfMissing(rank, entry, now);
  return nullptr;
}

StatusOr<const Peer*> Directory::lookUp(int rank, Entry& entry, TimePoint now) {
  if (!entry.requestedAt) {
    if (now < entry.nextTry) return nullptr;
    entry.requestedAt = now;
  }
  const std::optional<AsyncLookup::Result> result = lookup_->find(recordKey(options_.epoch, rank));
  if (!result) {
    entry.nextTry = nextRetry(*entry.requestedAt, now);
    AG_RETURN_IF_ERROR(checkStore(rank, entry, now));
    return nullptr;
  }
  entry.requestedAt.reset();
  entry.isWarned = false;
  entry.nextTry = nextRetry(*entry.wantedSince, now);
  AG_ASSIGN_OR_RETURN(const std::optional<std::string> record, *result);
  if (record) return add(rank, entry, *record);
  warnOfMissing(rank, entry, now);
  return nullptr;
}

StatusOr<const Peer*> Directory::add(int rank, Entry& entry, const std::string& record) const {
  StatusOr<Peer> peer = check(rank, record);
  if (!peer.hasValue()) {
    entry.failure =
        peer.status().withContext(formatText("{} cannot use {}", names_.of(options_.rank), names_.of(rank)));
    return *entry.failure;
  }
  entry.peer = std::move(peer).value();
  return &*entry.peer;
}

void Directory::warnOfMissing(int rank, const Entry& entry, TimePoint now) {
  const auto late = std::chrono::duration_cast<std::chrono::seconds>(now - *entry.wantedSince);
  if (late < kLateAfter || std::exchange(isLateWarned_, true)) return;
  AG_LOG(kWarn,
         "{} has waited for {} for {} s: that rank has not joined; it may be late, or have failed to start: look at "
         "its output",
         names_.of(options_.rank), names_.of(rank), late.count());
}

Directory::TimePoint Directory::nextRetry(TimePoint since, TimePoint now) {
  return now + std::clamp<TimePoint::duration>((now - since) / kPausesPerWait, kShortestPause, kLongestPause);
}

Directory::TimePoint Directory::askAgainAt(int rank) const {
  const auto entry = entries_.find(rank);
  return entry == entries_.end() ? TimePoint() : entry->second.nextTry;
}

Status Directory::checkStore(int rank, Entry& entry, TimePoint now) const {
  const auto late = std::chrono::duration_cast<std::chrono::milliseconds>(now - *entry.requestedAt);
  if (late < kWarnAfter) return {};
  const std::string text = formatText(
      "{} asked the store for {} {} ms ago and has no answer: is the process that serves the store (torchrun or rank "
      "0, as a rule) alive?",
      names_.of(options_.rank), names_.of(rank), late.count());
  if (late > options_.storeTimeout) return unavailable("timed out: " + text);
  if (!std::exchange(entry.isWarned, true)) AG_LOG(kWarn, text);
  return {};
}

StatusOr<Peer> Directory::check(int rank, const std::string& text) const {
  Peer peer;
  AG_ASSIGN_OR_RETURN(peer.record, decodePeerRecord(text, options_.key));
  const PeerRecord& record = peer.record;
  if (record.rank != static_cast<uint32_t>(rank) || record.epoch != options_.epoch) {
    return invalidArgument("its record is that of rank {} in epoch {}", record.rank, record.epoch);
  }
  if (record.worldSize != static_cast<uint32_t>(options_.size)) {
    return invalidArgument("it was started with a world of {} ranks, this rank with {}", record.worldSize,
                           options_.size);
  }
  if (record.protection != options_.protection) {
    return invalidArgument("it protects frames by " + std::string(toString(record.protection)) + ", this rank by " +
                           std::string(toString(options_.protection)) + ": set AGSPEED_COMM_MODE alike on all ranks");
  }
  const std::optional<security::Digest> agreed = keys_.agree(record.publicKey);
  if (!agreed) return invalidArgument("its public key is not usable");

  // The secret is bound to both identities. The identities are in the order of the ranks, so both ends derive the same
  // secret.
  const bool isLower = options_.rank < rank;
  std::array<std::byte, 128> context;
  wire::ByteWriter writer(context);
  writer.put(options_.epoch).put(std::min(options_.rank, rank)).put(std::max(options_.rank, rank));
  writer.put(isLower ? keys_.publicKey() : record.publicKey).put(isLower ? record.publicKey : keys_.publicKey());
  std::vector<std::byte> secret;
  secret.reserve(agreed->size() + options_.key.size());
  secret.insert(secret.end(), agreed->begin(), agreed->end());
  secret.insert(secret.end(), options_.key.begin(), options_.key.end());
  security::deriveKey(secret, security::bytesOf("agspeed pair"), std::span(context).first(writer.size()), peer.secret);
  return peer;
}

}  // namespace agspeed::comm::rendezvous
