// SPDX-License-Identifier: Apache-2.0
#include "comm/named/response_runner.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "comm/reduce/reduce.h"

namespace agspeed::comm::named {
namespace {

/// The maximum number of bytes that are copied between two polls of the network.
constexpr size_t kCopyBytes = size_t{256} << 10;
constexpr int kMaxBuffers = 4;
constexpr size_t kMinBufferBytes = size_t{64} << 10;
/// With this token, work() packs the next run. Every other token is a pointer to a run whose collectives have
/// completed, and work() unpacks this run.
constexpr uint64_t kPack = 0;

reduce::ReduceOp opOf(NamedReduction reduction) {
  switch (reduction) {
    case NamedReduction::kAverage:
    case NamedReduction::kSum: return reduce::ReduceOp::kSum;
    case NamedReduction::kMin: return reduce::ReduceOp::kMin;
    case NamedReduction::kMax: return reduce::ReduceOp::kMax;
    case NamedReduction::kProduct: return reduce::ReduceOp::kProduct;
  }
  return reduce::ReduceOp::kSum;
}

/// Divides `whole` into the rows of each rank.
engine::BufferList cutRows(std::span<std::byte> whole, const Dimensions& rows, size_t bytesPerRow) {
  engine::BufferList chunks;
  for (const int64_t each : rows) {
    const size_t size = static_cast<size_t>(each) * bytesPerRow;
    chunks.push_back(whole.first(size));
    whole = whole.subspan(size);
  }
  return chunks;
}

size_t rowBytes(const Request& request, size_t tensor) {
  return static_cast<size_t>(elementsPerRow(request.shapes[tensor])) * sizeInBytes(request.dtype);
}

int64_t sum(const Dimensions& rows) {
  int64_t total = 0;
  for (const int64_t each : rows) total += each;
  return total;
}

}  // namespace

ResponseRunner::~ResponseRunner() { engine_.removeWork(*this); }

bool ResponseRunner::Run::needsBuffer() const {
  return isFusable() && (agreements.size() > 1 || first().shapes.size() != 1 || operations[0] == nullptr);
}

size_t ResponseRunner::Run::bytesOf(size_t at) const {
  if (operations[at] == nullptr) return comm::named::bytesOf(agreements[at]->request);
  size_t count = 0;
  for (const auto& each : operations[at]->call().outputs) count += each.size();
  return count;
}

void ResponseRunner::run(std::vector<AgreementHandle> agreements, std::vector<NamedHandle> operations) {
  auto run = std::make_unique<Run>();
  run->agreements = std::move(agreements);
  run->operations = std::move(operations);
  run->dtype = run->first().dtype;
  for (size_t i = 0; run->isFusable() && i < run->agreements.size(); ++i) run->numBytes += run->bytesOf(i);
  ++stats_.numResponses;
  stats_.numOperations += run->agreements.size();
  begin(*run, upperCase(toString(run->first().kind)));
  begin(*run, "QUEUE");
  runs_.push_back(std::move(run));
  if (runs_.size() == 1 || runs_[runs_.size() - 2]->hasStarted) workLater(kPack);
}

void ResponseRunner::workLater(uint64_t token) { engine_.addWork(*this, token, 0); }

void ResponseRunner::cancel(const Status& reason) {
  engine_.removeWork(*this);
  for (size_t i = 0; i < runs_.size();) {
    Run& run = *runs_[i];
    if (run.hasStarted && run.numCallsLeft > 0) {
      ++i;
      continue;
    }
    run.status = reason;
    end(run);
  }
}

// --- preparing a response

double ResponseRunner::factorBefore(const Request& request) const {
  if (!isFloat(request.dtype) || request.reduction != NamedReduction::kAverage) return request.prescale;
  return request.prescale * (1.0 / communicator_.size());
}

double ResponseRunner::factorAfter(const Request& request) const {
  if (isFloat(request.dtype) || request.reduction != NamedReduction::kAverage) return request.postscale;
  return request.postscale * (1.0 / communicator_.size());
}

void ResponseRunner::scaleAfter(Run& run, std::byte* bytes, size_t count) const {
  const double factor = factorAfter(run.first());
  if (factor != 1) run.after.copies.push_back({bytes, bytes, count, factor});
}

bool ResponseRunner::takeBuffer(Run& run) {
  const auto found = std::find_if(freeBuffers_.begin(), freeBuffers_.end(),
                                  [&](const auto& each) { return each.first >= run.numBytes; });
  if (found != freeBuffers_.end()) {
    std::tie(run.capacity, run.buffer) = std::move(*found);
    freeBuffers_.erase(found);
    return true;
  }
  if (freeBuffers_.empty() && stats_.numFusionBuffers == kMaxBuffers) return false;
  if (!freeBuffers_.empty()) {  // the new buffer replaces a free one that is too small
    stats_.fusionBufferBytes -= freeBuffers_.back().first;
    --stats_.numFusionBuffers;
    freeBuffers_.pop_back();
  }
  run.capacity = std::bit_ceil(std::max(run.numBytes, kMinBufferBytes));
  run.buffer = std::make_unique_for_overwrite<std::byte[]>(run.capacity);
  ++stats_.numFusionBuffers;
  stats_.fusionBufferBytes += run.capacity;
  stats_.maxFusionBufferBytes = std::max(stats_.maxFusionBufferBytes, stats_.fusionBufferBytes);
  return true;
}

Status ResponseRunner::prepare(Run& run) {
  switch (run.first().kind) {
#define AG_NAMED_KIND(kind, name, constant, rows, prepare) \
  case NamedKind::k##kind: return prepare(run);
#include "comm/named/named_kinds.def"
  }
  return {};
}

Status ResponseRunner::prepareNothing(Run&) { return {}; }

Status ResponseRunner::prepareFused(Run& run) {
  const Request& first = run.first();
  const bool isSum = first.kind == NamedKind::kAllReduce;
  const bool isRoot = isSum || first.root == communicator_.rank();
  const double factor = isSum ? factorBefore(first) : 1;
  const size_t size = sizeInBytes(first.dtype);
  engine::CollectiveCall call{.collective = isSum ? schedule::Collective::kAllReduce : schedule::Collective::kBroadcast,
                              .dtype = first.dtype};
  call.op = opOf(first.reduction);
  call.root = isSum ? 0 : first.root;
  if (run.buffer == nullptr) {
    const NamedCall& own = run.operations[0]->call();
    const size_t count = own.inputs[0].size() / size;
    if (isRoot && factor != 1)
      run.before.copies.push_back({own.outputs[0].data(), own.inputs[0].data(), count, factor});
    if (isRoot) call.input = {factor != 1 ? own.outputs[0] : own.inputs[0]};
    call.output = {own.outputs[0]};
    if (isSum) scaleAfter(run, own.outputs[0].data(), count);
  } else {
    std::byte* at = run.buffer.get();
    run.before.copies.reserve(run.agreements.size());
    run.after.copies.reserve(run.agreements.size());
    const double after = isSum ? factorAfter(first) : 1;
    for (size_t i = 0; i < run.agreements.size(); ++i) {
      if (run.operations[i] == nullptr) {
        const size_t numBytes = run.bytesOf(i);
        run.before.copies.push_back({at, nullptr, numBytes / size});
        at += numBytes;
        continue;
      }
      const NamedCall& own = run.operations[i]->call();
      for (size_t j = 0; j < own.outputs.size(); ++j) {
        const size_t numBytes = own.outputs[j].size();
        if (isRoot) run.before.copies.push_back({at, own.inputs[j].data(), numBytes / size, factor});
        run.after.copies.push_back({own.outputs[j].data(), at, numBytes / size, after});
        at += numBytes;
      }
    }
    const std::span<std::byte> whole(run.buffer.get(), run.numBytes);
    if (isRoot) call.input = {whole};
    call.output = {whole};
  }
  run.calls.push_back(std::move(call));
  return {};
}

Status ResponseRunner::prepareGather(Run& run) {
  const Agreement& agreement = *run.agreements[0];
  const NamedCall& own = run.operations[0]->call();
  Dimensions totals;
  for (const Dimensions& each : agreement.rows) totals.push_back(sum(each));
  AG_RETURN_IF_ERROR(run.operations[0]->allocateOutputs(totals));
  for (size_t i = 0; i < agreement.rows.size(); ++i) {
    engine::CollectiveCall call{
        .collective = schedule::Collective::kAllGather, .dtype = agreement.request.dtype, .isContiguous = true};
    call.input = {own.inputs[i]};
    call.output = cutRows(own.outputs[i], agreement.rows[i], rowBytes(agreement.request, i));
    run.calls.push_back(std::move(call));
  }
  return {};
}

Status ResponseRunner::prepareExchange(Run& run) {
  const Agreement& agreement = *run.agreements[0];
  NamedOperation& operation = *run.operations[0];
  const auto rank = static_cast<size_t>(communicator_.rank());
  Dimensions received;
  for (const Dimensions& splits : agreement.rows) received.push_back(splits[rank]);
  AG_RETURN_IF_ERROR(operation.allocateOutputs({sum(received)}));
  const size_t bytes = rowBytes(agreement.request, 0);
  engine::CollectiveCall call{.collective = schedule::Collective::kAllToAll, .dtype = agreement.request.dtype};
  call.input = cutRows(operation.call().inputs[0], agreement.rows[rank], bytes);
  call.output = cutRows(operation.call().outputs[0], received, bytes);
  operation.setReceivedRows(std::move(received));
  run.calls.push_back(std::move(call));
  return {};
}

Status ResponseRunner::prepareScatter(Run& run) {
  const Request& request = run.first();
  const NamedCall& own = run.operations[0]->call();
  std::vector<Dimensions> rows;
  Dimensions ownRows;
  for (const Dimensions& shape : request.shapes) {
    rows.push_back(scatteredRows(shape[0], communicator_.size()));
    ownRows.push_back(rows.back()[static_cast<size_t>(communicator_.rank())]);
  }
  AG_RETURN_IF_ERROR(run.operations[0]->allocateOutputs(ownRows));
  const double factor = factorBefore(request);
  for (size_t i = 0; i < request.shapes.size(); ++i) {
    engine::CollectiveCall call{
        .collective = schedule::Collective::kReduceScatter, .dtype = request.dtype, .isContiguous = true};
    call.op = opOf(request.reduction);
    if (factor != 1) {
      call.op = reduce::ReduceOp::kPremultipliedSum;
      call.factor = factor;
    }
    call.input = cutRows(own.inputs[i], rows[i], rowBytes(request, i));
    call.output = {own.outputs[i]};
    scaleAfter(run, own.outputs[i].data(), own.outputs[i].size() / sizeInBytes(request.dtype));
    run.calls.push_back(std::move(call));
  }
  return {};
}

// --- running

void ResponseRunner::work(uint64_t token) {
  if (token == kPack) return packNext();
  Run& run = *reinterpret_cast<Run*>(token);
  // Unpack one part per call, so that the network is polled between two parts.
  if (run.status.isOk() && !copySome(run, run.after)) return workLater(token);
  end(run);
}

void ResponseRunner::packNext() {
  const auto next = std::find_if(runs_.begin(), runs_.end(), [](const auto& each) { return !each->hasStarted; });
  if (next == runs_.end()) return;
  Run& run = **next;
  if (!run.isPrepared) {
    if (run.needsBuffer() && !takeBuffer(run)) return;  // end() of another run schedules this function
    endActivity(run);
    run.isPrepared = true;
    run.status = prepare(run);
    begin(run, "MEMCPY_IN_FUSION_BUFFER");
  }
  const bool isLast = next + 1 == runs_.end();
  if (run.status.isOk() && !copySome(run, run.before)) return workLater(kPack);
  run.hasStarted = true;
  if (!isLast) workLater(kPack);
  run.status.isOk() ? start(run) : end(run);
}

bool ResponseRunner::copySome(Run& run, CopyList& list) {
  const size_t size = sizeInBytes(run.dtype);
  size_t numLeft = kCopyBytes / size;
  while (list.numDone < list.copies.size() && numLeft > 0) {
    Copy& copy = list.copies[list.numDone];
    if (copy.count == 0) {  // an empty tensor may have a null pointer
      ++list.numDone;
      continue;
    }
    const size_t count = std::min(copy.count, numLeft);
    if (copy.source == nullptr) {
      std::memset(copy.target, 0, count * size);
    } else if (copy.factor != 1) {
      reduce::multiply(copy.target, copy.source, count, run.dtype, copy.factor);
    } else if (copy.source != copy.target) {
      std::memcpy(copy.target, copy.source, count * size);
    }
    numLeft -= count;
    copy.count -= count;
    copy.target += count * size;
    if (copy.source != nullptr) copy.source += count * size;
    if (copy.count > 0) break;
    ++list.numDone;
  }
  return list.numDone == list.copies.size();
}

void ResponseRunner::start(Run& run) {
  endActivity(run);
  begin(run,
        run.first().kind == NamedKind::kBroadcast ? "GLOO_BCAST" : "GLOO_" + upperCase(toString(run.first().kind)));
  run.numCallsLeft = run.calls.size();
  if (run.calls.empty()) return end(run);
  for (engine::CollectiveCall& call : std::exchange(run.calls, {})) {
    communicator_.start(std::move(call), {.onEnd = [this, &run](const Status& status) { callEnded(run, status); }});
  }
}

void ResponseRunner::callEnded(Run& run, const Status& status) {
  if (run.status.isOk()) run.status = status;
  if (--run.numCallsLeft > 0) return;
  moved(run);
  endActivity(run);
  begin(run, "MEMCPY_OUT_FUSION_BUFFER");
  workLater(reinterpret_cast<uintptr_t>(&run));
}

void ResponseRunner::moved(Run& run) {
  if (!std::exchange(run.hasMoved, true)) listener_.responseMoved(run.first());
}

void ResponseRunner::end(Run& run) {
  moved(run);
  const auto at = std::find_if(runs_.begin(), runs_.end(), [&](const auto& each) { return each.get() == &run; });
  const std::unique_ptr<Run> ended = std::move(*at);
  runs_.erase(at);
  endActivity(*ended);
  endActivity(*ended);
  if (ended->buffer != nullptr) {
    freeBuffers_.emplace_back(ended->capacity, std::move(ended->buffer));
    workLater(kPack);  // a run may be waiting for a buffer
  }
  listener_.responseEnded(ended->operations, ended->status);
}

void ResponseRunner::begin(const Run& run, std::string_view activity) {
  if (timeline_ == nullptr) return;
  for (size_t i = 0; i < run.agreements.size(); ++i) timeline_->begin(run.name(i), activity);
}

void ResponseRunner::endActivity(const Run& run) {
  if (timeline_ == nullptr) return;
  for (size_t i = 0; i < run.agreements.size(); ++i) timeline_->end(run.name(i));
}

}  // namespace agspeed::comm::named
