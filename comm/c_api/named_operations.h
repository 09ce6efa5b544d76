// SPDX-License-Identifier: Apache-2.0
// Named operations (comm/named) for C and for languages that call C: collectives that ranks start in any order, matched
// by name. libagspeed-comm.so exports these functions and needs neither torch nor a compiler's libraries.
//
//   AgGroup* group;
//   if (ag_group_create("tcp:node0:29500", rank, size, NULL, &group) != AG_OK) puts(ag_last_error());
//   int64_t rows = 1024;
//   AgTensor tensor = {.input = values, .output = values, .num_dimensions = 1, .dimensions = &rows};
//   AgRequest sum = ag_request("gradient/7", AG_ALL_REDUCE, AG_F32);
//   sum.num_tensors = 1, sum.tensors = &tensor;
//   AgOperation* operation;
//   if (ag_start(group, &sum, &operation) == AG_OK && ag_wait(operation) == AG_OK) ...
//   ag_operation_free(operation);
//
// Settings come from the environment, as for the torch backend (AGSPEED_SOCKET_IFNAME, AGSPEED_JOB_KEY_FILE, ...).
//
// Errors: functions return a status. ag_last_error() describes this thread's last failure. AG_INVALID_ARGUMENT means
// that the call is invalid, or that ranks made different calls; the group stays usable. AG_FAILED means that the group
// has ended. Threading: any thread may call a function, but two threads must not use one operation at the same time.
// Ownership: the caller keeps the memory of tensors in place until the operation is done. The caller frees groups and
// operations with the functions below, in any order, once no thread waits for them.
#ifndef AGSPEED_COMM_C_API_NAMED_OPERATIONS_H_
#define AGSPEED_COMM_C_API_NAMED_OPERATIONS_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

typedef enum { AG_OK = 0, AG_INVALID_ARGUMENT = 1, AG_FAILED = 2 } AgStatus;

typedef enum {
  AG_ALL_REDUCE = 0,
  AG_ALL_GATHER = 1,  ///< tensors may differ between ranks in their first dimension
  AG_BROADCAST = 2,
  AG_ALL_TO_ALL = 3,      ///< `splits` states how many rows go to each rank
  AG_REDUCE_SCATTER = 4,  ///< ranks get equal parts of the rows; remaining rows go to the first ranks, one each
  AG_BARRIER = 5,
  AG_JOIN = 6  ///< ranks that have joined contribute zeros to all-reduces until all have joined
} AgKind;

typedef enum { AG_AVERAGE = 0, AG_SUM = 1, AG_MIN = 2, AG_MAX = 3, AG_PRODUCT = 4 } AgReduction;

typedef enum {
  AG_BOOL = 0,
  AG_U8 = 1,
  AG_I8 = 2,
  AG_I16 = 3,
  AG_I32 = 4,
  AG_I64 = 5,
  AG_F16 = 6,
  AG_BF16 = 7,
  AG_F32 = 8,
  AG_F64 = 9
} AgType;

typedef struct AgGroup AgGroup;
typedef struct AgOperation AgOperation;

typedef struct {
  double timeout_seconds;  ///< time limit of each operation; 0: 1800 seconds
  int64_t fusion_bytes;    ///< maximum size of a fused operation; rank 0's value counts; 0: nothing is fused
  /// If some ranks have not started an operation after stall_warning_seconds, rank 0 logs it; 0: never. After
  /// stall_shutdown_seconds, the group fails; 0: never. stall_shutdown_seconds has no effect if stall_warning_seconds
  /// is 0.
  double stall_warning_seconds, stall_shutdown_seconds;
} AgGroupOptions;

typedef struct {
  const void* input;
  void* output;  ///< may be the input; NULL if the request's `allocate` provides it
  size_t num_dimensions;
  const int64_t* dimensions;
} AgTensor;

typedef struct {
  const char* name;
  AgKind kind;
  AgType type;
  AgReduction reduction;
  int root;      ///< the root of a broadcast
  int priority;  ///< a higher value runs sooner if the plan orders by priority
  double prescale, postscale;
  int is_cacheable;    ///< not 0: the name is likely to be used again
  size_t num_tensors;  ///< several tensors are handled as one operation
  const AgTensor* tensors;
  const int64_t* splits;  ///< for an all-to-all: the number of rows for each rank
  /// For all-gathers, all-to-alls and reduce-scatters: returns memory for the output of the tensor at index `tensor`.
  /// The output has `rows` as its first dimension. If this function returns NULL, the operation fails, unless the
  /// output is empty. A thread of the library calls it, so it must not wait for operations.
  void* (*allocate)(void* context, size_t tensor, int64_t rows);
  void* context;
} AgRequest;

/// Both return default values: sums, factors of 1, fusion up to 32 MiB, and a warning after 60 s.
AgGroupOptions ag_group_options(void);
AgRequest ag_request(const char* name, AgKind kind, AgType type);

/// Returns the text of this thread's last failure. The text is valid until the thread's next failure.
const char* ag_last_error(void);

/// Makes a group of all ranks. All ranks call it. `rendezvous`: where ranks find each other; the same text at all
/// ranks. "file:FOLDER" names an existing folder that all ranks can write to and that belongs to this job.
/// "tcp:HOST:PORT" is an address of rank 0's host, where rank 0's group serves all ranks that prove the job key.
/// `options`: NULL means ag_group_options(). The timeout also limits how long ranks wait for each other.
AgStatus ag_group_create(const char* rendezvous, int rank, int size, const AgGroupOptions* options, AgGroup** group);
/// Makes a group of some ranks of `whole`. All ranks of `whole` make these calls in the same order. `*group` is NULL at
/// ranks outside the part. Ranks of the part are numbered from 0, in the order of their ranks in `whole`.
AgStatus ag_group_create_part(AgGroup* whole, const int* ranks, size_t num_ranks, AgGroup** group);
int ag_group_rank(const AgGroup* group);
int ag_group_size(const AgGroup* group);
/// Makes this rank leave the group. Operations that not all ranks have started fail at all ranks, and so do later
/// operations.
void ag_group_shutdown(AgGroup* group);
/// Frees the group. Its unfinished operations fail. NULL is allowed.
void ag_group_free(AgGroup* group);

/// Starts an operation. If an operation of this name is in flight, returns AG_INVALID_ARGUMENT.
AgStatus ag_start(AgGroup* group, const AgRequest* request, AgOperation** operation);
/// Returns 1 if ag_wait() would return at once, else 0.
int ag_is_done(AgOperation* operation);
/// Waits until the operation is done, and returns its status.
AgStatus ag_wait(AgOperation* operation);
/// Calls `callback` once when the operation is done, on a thread for callbacks. The callback may wait and block.
/// `error` is NULL or a text that is valid during the callback. Do not free the operation before the callback.
void ag_when_done(AgOperation* operation, void (*callback)(void* context, AgStatus status, const char* error),
                  void* context);
/// For an all-to-all that is done: writes the numbers of rows received from each rank to `rows`, at most `count`
/// numbers. Returns how many numbers it has written.
size_t ag_received_rows(const AgOperation* operation, int64_t* rows, size_t count);
/// For a join that is done: returns the rank that joined last.
int ag_last_joined(const AgOperation* operation);
/// Frees the handle. Does not cancel the operation. NULL is allowed.
void ag_operation_free(AgOperation* operation);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif  // AGSPEED_COMM_C_API_NAMED_OPERATIONS_H_
