// SPDX-License-Identifier: Apache-2.0
#include "comm/world/flight_record.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/files/write_file.h"
#include "runtime/base/log.h"
#include "runtime/base/settings.h"

namespace agspeed::comm::world {
namespace {

using Json = nlohmann::ordered_json;

double wallClock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

double seconds(io::Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

/// Sets `sizes` to the chunks' numbers of elements. Returns their total number of bytes.
uint64_t setSizes(std::vector<uint64_t>& sizes, const engine::BufferList& chunks, size_t elementBytes) {
  uint64_t sum = 0;
  sizes.clear();
  for (const auto chunk : chunks) {
    sizes.push_back(chunk.size() / elementBytes);
    sum += chunk.size();
  }
  return sum;
}

}  // namespace

// --- the recorder

std::shared_ptr<FlightRing> FlightRecorder::addGroup(std::string name, std::vector<int> ranks) {
  auto ring = std::make_shared<FlightRing>(shared_from_this(), std::move(name), std::move(ranks));
  const std::lock_guard lock(mutex_);
  std::erase_if(rings_, [](const auto& known) { return known.expired(); });
  rings_.push_back(ring);
  return ring;
}

std::vector<std::shared_ptr<FlightRing>> FlightRecorder::rings() {
  std::vector<std::shared_ptr<FlightRing>> living;
  const std::lock_guard lock(mutex_);
  for (const auto& known : rings_) {
    if (auto ring = known.lock()) living.push_back(std::move(ring));
  }
  return living;
}

std::map<std::string, OperationTotals> FlightRecorder::totals() {
  for (const auto& ring : rings()) {
    const std::lock_guard lock(ring->mutex_);
    ring->settleAll();
  }
  const std::lock_guard lock(mutex_);
  return {totals_.begin(), totals_.end()};
}

std::optional<FinishedOperation> FlightRecorder::lastFinished() {
  std::optional<FinishedOperation> last;
  for (const auto& ring : rings()) {
    const std::lock_guard lock(ring->mutex_);
    ring->settleAll();
    const uint64_t first = ring->numAdded_ - std::min<uint64_t>(ring->numAdded_, kEntries);
    for (uint64_t number = first; number < ring->numAdded_; ++number) {
      const FlightRing::Entry& entry = ring->entries_[number % kEntries];
      const bool isLater = entry.operation == nullptr && (!last || entry.ended > last->ended);
      if (isLater) last = {ring->name_, entry.facts.name, entry.facts.sequence, entry.ended};
    }
  }
  return last;
}

std::string FlightRecorder::toJson(const std::string& reason) {
  Json document = {{"kind", "agspeed.flight_record"},
                   {"version", 1},
                   {"rank", rank_},
                   {"world_size", size_},
                   {"process", getpid()},
                   {"written_at", wallClock()},
                   {"reason", reason},
                   {"groups", Json::array()}};
  for (const auto& ring : rings()) {
    const std::lock_guard lock(ring->mutex_);
    ring->settleAll();
    Json entries = Json::array();
    const uint64_t first = ring->numAdded_ - std::min<uint64_t>(ring->numAdded_, kEntries);
    for (uint64_t number = first; number < ring->numAdded_; ++number) {
      const FlightRing::Entry& entry = ring->entries_[number % kEntries];
      const bool isOpen = entry.operation != nullptr;
      Json found = {{"sequence", entry.facts.sequence},
                    {"operation", entry.facts.name},
                    {"dtype", toString(entry.facts.dtype)},
                    {"input_sizes", entry.inputSizes},
                    {"output_sizes", entry.outputSizes},
                    {"state", isOpen                ? "under way"
                              : entry.error.empty() ? "done"
                                                    : "failed"},
                    {"started_at", entry.startedAt},
                    {"seconds", seconds((isOpen ? io::Clock::now() : entry.ended) - entry.facts.started)},
                    {"timeout_s", seconds(entry.facts.timeout)}};
      const bool isMessage = entry.facts.tag >= 0;
      if (entry.facts.rank >= 0) found[isMessage ? "peer" : "root"] = entry.facts.rank;
      if (isMessage) found["tag"] = entry.facts.tag;
      if (!entry.error.empty()) found["error"] = entry.error;
      entries.push_back(std::move(found));
    }
    document["groups"].push_back(Json::object({{"name", ring->name_},
                                               {"ranks", ring->ranks_},
                                               {"operations_before", first},
                                               {"operations", std::move(entries)}}));
  }
  return document.dump(1, ' ', false, Json::error_handler_t::replace);
}

void FlightRecorder::write(const std::string& reason) {
  const std::string& folder = settings().flightRecordDir;
  if (folder.empty()) return;
  const std::string path = formatText("{}/flight-record-rank{}.json", folder, rank_);
  const Status written = writeFile(path, toJson(reason) + '\n');
  if (written.isOk()) {
    AG_LOG(kWarn, "rank {}: the flight record is in {}", rank_, path);
  } else {
    AG_LOG(kWarn,
           "rank {}: the flight record cannot be written to {}: {}; set AGSPEED_FLIGHT_RECORD_DIR to a folder that "
           "exists and that you may write to",
           rank_, path, written.message());
  }
}

// --- a ring

FlightRing::FlightRing(std::shared_ptr<FlightRecorder> recorder, std::string name, std::vector<int> ranks)
    : recorder_(std::move(recorder)),
      name_(std::move(name)),
      ranks_(std::move(ranks)),
      entries_(FlightRecorder::kEntries) {}

void FlightRing::add(const FlightFacts& facts, const engine::BufferList& input, const engine::BufferList& output,
                     engine::OperationHandle operation) {
  const std::lock_guard lock(mutex_);
  settleFirst();
  Entry& entry = entries_[numAdded_ % entries_.size()];
  if (numAdded_ >= entries_.size()) settle(entry);
  ++numAdded_;
  firstOpen_ = std::max<uint64_t>(firstOpen_, numAdded_ - std::min<uint64_t>(numAdded_, entries_.size()));
  entry.facts = facts;
  const size_t elementBytes = sizeInBytes(facts.dtype);
  const uint64_t numBytes =
      std::max(setSizes(entry.inputSizes, input, elementBytes), setSizes(entry.outputSizes, output, elementBytes));
  entry.startedAt = wallClock() - seconds(io::Clock::now() - facts.started);
  entry.operation = std::move(operation);
  entry.error.clear();
  const std::lock_guard recorderLock(recorder_->mutex_);
  auto totals = recorder_->totals_.find(facts.name);
  if (totals == recorder_->totals_.end()) totals = recorder_->totals_.try_emplace(std::string(facts.name)).first;
  ++totals->second.numStarted;
  totals->second.numBytes += numBytes;
}

void FlightRing::failed(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(hasFailed_, true)) return;
  }
  recorder_->write(reason);
}

void FlightRing::settleFirst() {
  // Operations mostly complete in their order, so stop at the first one that is still running. settleAll() records the
  // outcome of later operations.
  while (firstOpen_ < numAdded_ && settle(entries_[firstOpen_ % entries_.size()])) ++firstOpen_;
}

void FlightRing::settleAll() {
  for (uint64_t number = firstOpen_; number < numAdded_; ++number) settle(entries_[number % entries_.size()]);
}

bool FlightRing::settle(Entry& entry) {
  if (entry.operation == nullptr) return true;
  if (!entry.operation->isDone()) return false;
  entry.ended = entry.operation->endedAt();
  entry.facts.rank = std::max(entry.facts.rank, entry.operation->sourceRank());
  if (!entry.operation->status().isOk()) entry.error = entry.operation->status().message();
  const std::lock_guard lock(recorder_->mutex_);
  OperationTotals& totals = recorder_->totals_.find(entry.facts.name)->second;
  ++totals.numEnded;
  totals.numFailed += entry.operation->status().isOk() ? 0 : 1;
  totals.seconds += seconds(entry.ended - entry.facts.started);
  entry.operation.reset();
  return true;
}

}  // namespace agspeed::comm::world
