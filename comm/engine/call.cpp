// SPDX-License-Identifier: Apache-2.0
#include "comm/engine/call.h"
#include "runtime/base/format.h"

#include <bit>
#include <cstring>
#include <numeric>

namespace agspeed::comm::engine {

namespace {

/// How many input and output chunks a rank must pass.
struct Shape {
  size_t numInputs;
  size_t numOutputs;
};

Shape shapeOf(schedule::Collective collective, bool isRoot, size_t numRanks) {
  switch (collective) {
    case schedule::Collective::kAllReduce: return {1, 1};
    case schedule::Collective::kBroadcast: return {isRoot ? 1u : 0u, 1};
    case schedule::Collective::kReduce: return {1, isRoot ? 1u : 0u};
    case schedule::Collective::kAllGather: return {1, numRanks};
    case schedule::Collective::kGather: return {1, isRoot ? numRanks : 0};
    case schedule::Collective::kReduceScatter: return {numRanks, 1};
    case schedule::Collective::kScatter: return {isRoot ? numRanks : 0, 1};
    case schedule::Collective::kAllToAll: return {numRanks, numRanks};
    case schedule::Collective::kBarrier: return {0, 0};
  }
  return {0, 0};
}

std::string nameOf(const CollectiveCall& call) { return std::string(toString(call.collective)); }

size_t total(const BufferList& chunks) {
  return std::accumulate(chunks.begin(), chunks.end(), size_t{0},
                         [](size_t sum, std::span<std::byte> chunk) { return sum + chunk.size(); });
}

Status checkChunks(const CollectiveCall& call, const BufferList& chunks, size_t expected, const char* name) {
  if (expected == 0) return {};
  if (chunks.size() != expected) {
    return invalidArgument("{} needs {} {} buffer{}, and got {}", nameOf(call), expected, name,
                           expected == 1 ? "" : "s, one per rank", chunks.size());
  }
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].size() % sizeInBytes(call.dtype) != 0) {
      return invalidArgument("{}: {} buffer {} has {} bytes, which is no whole number of {} elements", nameOf(call),
                             name, i, chunks[i].size(), agspeed::toString(call.dtype));
    }
    if (call.isContiguous && i > 0 && chunks[i].data() != chunks[i - 1].data() + chunks[i - 1].size()) {
      return invalidArgument(
          "{}: {} buffer {} does not lie right behind the buffer before it, although the call promises that",
          nameOf(call), name, i);
    }
  }
  return {};
}

uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

/// Returns the buffers whose sizes every rank knows.
const BufferList& agreedChunks(const CollectiveCall& call) {
  static const BufferList kNone;
  switch (call.collective) {
    case schedule::Collective::kAllReduce:
    case schedule::Collective::kReduce:
    case schedule::Collective::kReduceScatter: return call.input;
    case schedule::Collective::kBroadcast:
    case schedule::Collective::kAllGather: return call.output;
    default: return kNone;
  }
}

}  // namespace

BufferList splitEvenly(std::span<std::byte> whole, int count) {
  BufferList chunks;
  const size_t size = whole.size() / static_cast<size_t>(count);
  for (int i = 0; i < count; ++i) chunks.push_back(whole.subspan(static_cast<size_t>(i) * size, size));
  return chunks;
}

Status validate(const CollectiveCall& call, int rank, int numRanks) {
  if (hasRoot(call.collective) && (call.root < 0 || call.root >= numRanks)) {
    return invalidArgument("{}: root {} is not one of the {} ranks of the group", nameOf(call), call.root, numRanks);
  }
  const Shape shape = shapeOf(call.collective, rank == call.root, static_cast<size_t>(numRanks));
  AG_RETURN_IF_ERROR(checkChunks(call, call.input, shape.numInputs, "input"));
  AG_RETURN_IF_ERROR(checkChunks(call, call.output, shape.numOutputs, "output"));
  if (isReduction(call.collective)) AG_RETURN_IF_ERROR(checkReduction(call.op, call.dtype));
  if (shape.numInputs == 0 || shape.numOutputs == 0) return {};
  const auto own = static_cast<size_t>(rank);
  const size_t in = shape.numInputs == 1 ? call.input[0].size() : call.input[own].size();
  const size_t out = shape.numOutputs == 1 ? call.output[0].size() : call.output[own].size();
  if (in == out) return {};
  return invalidArgument("{}: this rank's input has {} bytes and its output {}; they must be equal", nameOf(call), in,
                         out);
}

size_t agreedBytes(const CollectiveCall& call) { return total(agreedChunks(call)); }

CallSignature signatureOf(const CollectiveCall& call) {
  CallSignature signature;
  signature.collective = static_cast<uint8_t>(call.collective);
  signature.dtype = static_cast<uint8_t>(call.dtype);
  if (isReduction(call.collective)) signature.op = static_cast<uint8_t>(call.op);
  signature.isContiguous = call.isContiguous;
  if (hasRoot(call.collective)) signature.root = call.root;
  signature.numBytes = agreedBytes(call);
  for (const auto chunk : agreedChunks(call)) signature.layout = mix(signature.layout + chunk.size() + 1);
  return signature;
}

std::string toString(const CallSignature& signature) {
  const auto collective = static_cast<schedule::Collective>(signature.collective);
  const auto dtype = static_cast<DType>(signature.dtype);
  if (collective == schedule::Collective::kBarrier) return "barrier()";
  const bool knowsSize = collective != schedule::Collective::kGather && collective != schedule::Collective::kScatter &&
                         collective != schedule::Collective::kAllToAll;
  std::string text = std::string(toString(collective)) + "(";
  if (knowsSize) text += formatText("{} x ", signature.numBytes / sizeInBytes(dtype));
  text += agspeed::toString(dtype);
  if (isReduction(collective)) text += ", " + std::string(toString(static_cast<reduce::ReduceOp>(signature.op)));
  if (hasRoot(collective)) text += formatText(", root {}", signature.root);
  return text + (signature.planVersion == CallSignature::kHostStatsExchange
                     ? "), before which ranks exchange host statistics"
                     : ")");
}

uint64_t extendChain(uint64_t chain, const CallSignature& signature) {
  static_assert(sizeof(CallSignature) == 40, "padding would be hashed");
  uint64_t words[sizeof(CallSignature) / 8];
  std::memcpy(words, &signature, sizeof words);
  for (const uint64_t word : words) chain = mix(chain * 31 + word + 1);
  return chain;
}

}  // namespace agspeed::comm::engine
