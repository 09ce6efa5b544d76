// SPDX-License-Identifier: Apache-2.0
#include "comm/c_api/named_operations.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/api.h"

using agspeed::DType;
using agspeed::Status;
using agspeed::StatusCode;
using agspeed::StatusOr;
using namespace agspeed::comm;

struct AgGroup {
  ~AgGroup() {
    if (world != nullptr && world->isForked()) (void)named.release();  // leaked: it belongs to the parent process
  }

  std::shared_ptr<World> world;
  AgGroupOptions options{};
  std::vector<int> members;  ///< members of the group, as world ranks
  std::string prefix;        ///< prefix of its keys in the store
  int numParts = 0;          ///< number of parts that were made of this group
  std::unique_ptr<NamedGroup> named;
};

struct AgOperation {
  std::shared_ptr<World> world;
  NamedHandle handle;
};

namespace {

constexpr double kUsualTimeoutSeconds = 1800;

thread_local std::string lastError;

AgStatus statusOf(const Status& status) {
  if (status.isOk()) return AG_OK;
  return status.code() == StatusCode::kInvalidArgument ? AG_INVALID_ARGUMENT : AG_FAILED;
}

/// Stores the error for ag_last_error(), and returns the status for C.
AgStatus recordError(const Status& status) {
  if (!status.isOk()) lastError = status.message();
  return statusOf(status);
}

/// Calls the function and returns its status for C. Catches exceptions, which mean that memory ran out or a thread
/// could not be started.
template <typename Function>
AgStatus guarded(Function function) {
  try {
    return recordError(function());
  } catch (const std::exception& error) {
    return recordError(agspeed::resourceExhausted("{}", error.what()));
  }
}

Clock::duration durationOf(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

Clock::duration timeoutOf(const AgGroupOptions& options) {
  return durationOf(options.timeout_seconds > 0 ? options.timeout_seconds : kUsualTimeoutSeconds);
}

std::optional<DType> typeOf(AgType type) {
  switch (type) {
    case AG_BOOL: return DType::kBool;
    case AG_U8: return DType::kU8;
    case AG_I8: return DType::kI8;
    case AG_I16: return DType::kI16;
    case AG_I32: return DType::kI32;
    case AG_I64: return DType::kI64;
    case AG_F16: return DType::kF16;
    case AG_BF16: return DType::kBF16;
    case AG_F32: return DType::kF32;
    case AG_F64: return DType::kF64;
  }
  return std::nullopt;
}

std::optional<NamedKind> kindOf(AgKind kind) {
  switch (kind) {
#define AG_NAMED_KIND(kind, name, constant, rows, prepare) \
  case constant: return NamedKind::k##kind;
#include "comm/named/named_kinds.def"
  }
  return std::nullopt;
}

std::optional<NamedReduction> reductionOf(AgReduction reduction) {
  switch (reduction) {
    case AG_AVERAGE: return NamedReduction::kAverage;
    case AG_SUM: return NamedReduction::kSum;
    case AG_MIN: return NamedReduction::kMin;
    case AG_MAX: return NamedReduction::kMax;
    case AG_PRODUCT: return NamedReduction::kProduct;
  }
  return std::nullopt;
}

bool isNegative(int64_t number) { return number < 0; }

Status checkShapes(const Request& request) {
  const size_t count = request.shapes.size();
  const NamedRows rows = rowsOf(request.kind);
  const bool takesOne = rows == NamedRows::kExchanged;
  if (rows == NamedRows::kNone ? count > 0 : count == 0 || (takesOne && count > 1)) {
    return agspeed::invalidArgument(
        "'{}': {} got {} tensors; an all-to-all takes one, a barrier or join takes none, and every other kind takes "
        "one or more",
        request.name, toString(request.kind), count);
  }
  for (const Dimensions& shape : request.shapes) {
    if (std::any_of(shape.begin(), shape.end(), isNegative)) {
      return agspeed::invalidArgument("'{}': the shape {} of a tensor has a negative dimension", request.name,
                                      toString(shape));
    }
    if (shape.empty() && rows != NamedRows::kSame) {
      return agspeed::invalidArgument(
          "'{}': {} got a tensor without dimensions, which has no rows; pass one with dimensions", request.name,
          toString(request.kind));
    }
  }
  return {};
}

Status checkSplits(const Request& request) {
  const Dimensions& splits = request.splits;
  const int64_t total = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  if (!splits.empty() && std::none_of(splits.begin(), splits.end(), isNegative) && total == request.shapes[0][0]) {
    return {};
  }
  return agspeed::invalidArgument(
      "'{}': splits {} are no shares of the {} rows of the tensor: pass one number of rows per rank, with this sum",
      request.name, toString(splits), request.shapes[0][0]);
}

StatusOr<Request> requestOf(const AgRequest& wanted, int numRanks) {
  const auto kind = kindOf(wanted.kind);
  const auto type = typeOf(wanted.type);
  const auto reduction = reductionOf(wanted.reduction);
  if (!kind || !type || !reduction) {
    return agspeed::invalidArgument("kind {}, type {} or reduction {} is not a constant of named_operations.h",
                                    static_cast<int>(wanted.kind), static_cast<int>(wanted.type),
                                    static_cast<int>(wanted.reduction));
  }
  Request request;
  request.kind = *kind;
  request.dtype = *type;
  request.reduction = *reduction;
  request.isCacheable = wanted.is_cacheable != 0;
  request.root = wanted.root;
  request.priority = wanted.priority;
  request.prescale = wanted.prescale;
  request.postscale = wanted.postscale;
  if (wanted.name != nullptr) request.name = wanted.name;
  if (request.name.empty()) return agspeed::invalidArgument("an operation needs a name, by which ranks match it");
  for (size_t i = 0; i < wanted.num_tensors; ++i) {
    const AgTensor& tensor = wanted.tensors[i];
    request.shapes.emplace_back(tensor.dimensions, tensor.dimensions + tensor.num_dimensions);
  }
  if (rowsOf(*kind) == NamedRows::kExchanged && wanted.splits != nullptr) {
    request.splits.assign(wanted.splits, wanted.splits + numRanks);
  }
  AG_RETURN_IF_ERROR(checkShapes(request));
  if (rowsOf(*kind) == NamedRows::kExchanged) AG_RETURN_IF_ERROR(checkSplits(request));
  if (*kind == NamedKind::kBroadcast && (request.root < 0 || request.root >= numRanks)) {
    return agspeed::invalidArgument("'{}': root {} is not one of the {} ranks, which count from 0", request.name,
                                    request.root, numRanks);
  }
  return request;
}

/// Returns a function that calls the caller's `allocate` for each output.
std::function<StatusOr<BufferList>(const Dimensions&)> allocator(const AgRequest& wanted, const Request& request) {
  std::vector<size_t> bytesPerRow;
  for (const Dimensions& shape : request.shapes) {
    bytesPerRow.push_back(static_cast<size_t>(elementsPerRow(shape)) * sizeInBytes(request.dtype));
  }
  return [allocate = wanted.allocate, context = wanted.context,
          bytesPerRow](const Dimensions& rows) -> StatusOr<BufferList> {
    BufferList buffers;
    for (size_t i = 0; i < rows.size(); ++i) {
      const size_t size = static_cast<size_t>(rows[i]) * bytesPerRow[i];
      auto* made = static_cast<std::byte*>(allocate(context, i, rows[i]));
      if (made == nullptr && size > 0)
        return agspeed::resourceExhausted("`allocate` returned NULL for {} rows of a result", rows[i]);
      buffers.emplace_back(made, size);
    }
    return buffers;
  };
}

StatusOr<NamedCall> callOf(const AgRequest& wanted, int numRanks) {
  NamedCall call;
  AG_ASSIGN_OR_RETURN(call.request, requestOf(wanted, numRanks));
  const Request& request = call.request;
  const bool isInPlace = rowsOf(request.kind) == NamedRows::kSame;
  for (size_t i = 0; i < wanted.num_tensors; ++i) {
    const AgTensor& tensor = wanted.tensors[i];
    const size_t size = static_cast<size_t>(numElements(request.shapes[i])) * sizeInBytes(request.dtype);
    if (size > 0 && (tensor.input == nullptr || (isInPlace && tensor.output == nullptr))) {
      return agspeed::invalidArgument("'{}': tensor {} has elements, but a pointer to its memory is NULL", request.name,
                                      i);
    }
    // The engine has one type for inputs and outputs. The cast is safe, because it only reads inputs.
    call.inputs.emplace_back(static_cast<std::byte*>(const_cast<void*>(tensor.input)), size);
    if (isInPlace) call.outputs.emplace_back(static_cast<std::byte*>(tensor.output), size);
  }
  if (!isInPlace && rowsOf(request.kind) != NamedRows::kNone) {
    if (wanted.allocate == nullptr) {
      return agspeed::invalidArgument("'{}': {} needs `allocate`, which makes its output", request.name,
                                      toString(request.kind));
    }
    call.allocate = allocator(wanted, request);
  }
  return call;
}

/// Makes the NamedGroup. Requires: all other members are set.
Status open(AgGroup& group) {
  const AgGroupOptions& wanted = group.options;
  NamedOptions options;
  options.group.name = group.prefix;
  options.group.members = group.members;
  options.group.timeout = timeoutOf(wanted);
  options.plan.fusionBytes = static_cast<size_t>(std::max<int64_t>(wanted.fusion_bytes, 0));
  options.stallWarning = durationOf(wanted.stall_warning_seconds);
  options.stallShutdown = durationOf(wanted.stall_shutdown_seconds);
  AG_ASSIGN_OR_RETURN(group.named, createNamedGroup(*group.world, std::move(options)));
  return {};
}

Status create(const char* rendezvous, int rank, int size, const AgGroupOptions* options, AgGroup** made) {
  if (rank < 0 || rank >= size) {
    return agspeed::invalidArgument("rank {} of {}: ranks count from 0 to the size minus 1", rank, size);
  }
  auto group = std::make_unique<AgGroup>();
  group->options = options != nullptr ? *options : ag_group_options();
  const auto timeout = std::chrono::duration_cast<std::chrono::milliseconds>(timeoutOf(group->options));
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  AG_ASSIGN_OR_RETURN(auto store, openRendezvousStore(rendezvous == nullptr ? "" : rendezvous, rank, size, deadline));
  AG_ASSIGN_OR_RETURN(group->world, World::create(store, rank, size, timeout));
  group->members.resize(static_cast<size_t>(size));
  std::iota(group->members.begin(), group->members.end(), 0);
  group->prefix = "c/group";
  AG_RETURN_IF_ERROR(open(*group));
  *made = group.release();
  return {};
}

Status createPart(AgGroup& whole, std::vector<int> ranks, AgGroup** made) {
  const int number = ++whole.numParts;  // the same number at all ranks
  std::sort(ranks.begin(), ranks.end());
  const bool isSet = std::adjacent_find(ranks.begin(), ranks.end()) == ranks.end();
  if (ranks.empty() || !isSet || ranks.front() < 0 || ranks.back() >= whole.named->size()) {
    return agspeed::invalidArgument(
        "ranks {} are not a part of a group of {} ranks: list each rank once; ranks count from 0",
        toString(Dimensions(ranks.begin(), ranks.end())), whole.named->size());
  }
  if (std::find(ranks.begin(), ranks.end(), whole.named->rank()) == ranks.end()) return {};
  auto group = std::make_unique<AgGroup>();
  group->world = whole.world;
  group->options = whole.options;
  for (const int rank : ranks) group->members.push_back(whole.members[static_cast<size_t>(rank)]);
  group->prefix = agspeed::formatText("{}/part/{}", whole.prefix, number);
  AG_RETURN_IF_ERROR(open(*group));
  *made = group.release();
  return {};
}

}  // namespace

AgGroupOptions ag_group_options(void) {
  return {.timeout_seconds = kUsualTimeoutSeconds,
          .fusion_bytes = int64_t{32} << 20,
          .stall_warning_seconds = 60,
          .stall_shutdown_seconds = 0};
}

AgRequest ag_request(const char* name, AgKind kind, AgType type) {
  AgRequest request{};
  request.name = name;
  request.kind = kind;
  request.type = type;
  request.reduction = AG_SUM;
  request.prescale = request.postscale = 1;
  request.is_cacheable = 1;
  return request;
}

const char* ag_last_error(void) { return lastError.c_str(); }

AgStatus ag_group_create(const char* rendezvous, int rank, int size, const AgGroupOptions* options, AgGroup** group) {
  *group = nullptr;
  return guarded([&] { return create(rendezvous, rank, size, options, group); });
}

AgStatus ag_group_create_part(AgGroup* whole, const int* ranks, size_t num_ranks, AgGroup** group) {
  *group = nullptr;
  return guarded([&] { return createPart(*whole, std::vector<int>(ranks, ranks + num_ranks), group); });
}

int ag_group_rank(const AgGroup* group) { return group->named->rank(); }
int ag_group_size(const AgGroup* group) { return group->named->size(); }
void ag_group_shutdown(AgGroup* group) { group->named->shutdown(); }
void ag_group_free(AgGroup* group) { delete group; }

AgStatus ag_start(AgGroup* group, const AgRequest* request, AgOperation** operation) {
  *operation = nullptr;
  return guarded([&]() -> Status {
    AG_ASSIGN_OR_RETURN(NamedCall call, callOf(*request, group->named->size()));
    AG_ASSIGN_OR_RETURN(NamedHandle handle, group->named->start(std::move(call)));
    *operation = new AgOperation{group->world, std::move(handle)};
    return {};
  });
}

int ag_is_done(AgOperation* operation) { return operation->handle->poll() ? 1 : 0; }

AgStatus ag_wait(AgOperation* operation) {
  return guarded([&] { return operation->handle->wait(); });
}

void ag_when_done(AgOperation* operation, void (*callback)(void* context, AgStatus status, const char* error),
                  void* context) {
  operation->handle->whenDone([callback, context](const Status& status) {
    callback(context, statusOf(status), status.isOk() ? nullptr : status.message().c_str());
  });
}

size_t ag_received_rows(const AgOperation* operation, int64_t* rows, size_t count) {
  const Dimensions& received = operation->handle->receivedRows();
  const size_t number = std::min(count, received.size());
  std::copy_n(received.begin(), number, rows);
  return number;
}

int ag_last_joined(const AgOperation* operation) { return operation->handle->lastJoined(); }

void ag_operation_free(AgOperation* operation) { delete operation; }
