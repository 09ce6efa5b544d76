// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/c_api/rank.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/c_api/named_operations.h"

#define CHECK(condition)                                                                                   \
  if (!(condition)) {                                                                                      \
    fprintf(stderr, "rank %d: %s does not hold; %s\n", ag_group_rank(group), #condition, ag_last_error()); \
    return __LINE__;                                                                                       \
  }

enum { COUNT = 1000 };

static AgStatus run(AgGroup* group, const AgRequest* request) {
  AgOperation* operation;
  AgStatus status = ag_start(group, request, &operation);
  if (status == AG_OK) status = ag_wait(operation);
  ag_operation_free(operation);
  return status;
}

static int reduces_in_any_order(AgGroup* group, int rank, int size) {
  static float values[3][COUNT];
  const char* names[] = {"a", "b", "c"};
  AgOperation* operations[3];
  const int64_t shape[] = {10, COUNT / 10};
  for (int i = 0; i < 3; ++i) {
    const int at = (i + rank) % 3; /* each rank in an order of its own */
    for (int j = 0; j < COUNT; ++j) values[at][j] = (float)(at + rank + j);
    const AgTensor tensor = {values[at], values[at], 2, shape};
    AgRequest request = ag_request(names[at], AG_ALL_REDUCE, AG_F32);
    request.num_tensors = 1, request.tensors = &tensor;
    CHECK(ag_start(group, &request, &operations[at]) == AG_OK);
  }
  for (int at = 0; at < 3; ++at) {
    CHECK(ag_wait(operations[at]) == AG_OK && ag_is_done(operations[at]));
    ag_operation_free(operations[at]);
    for (int j = 0; j < COUNT; ++j) CHECK(values[at][j] == (float)(size * (at + j) + size * (size - 1) / 2));
  }
  return 0;
}

static void* allocate(void* context, size_t tensor, int64_t rows) {
  (void)tensor;
  return *(void**)context = malloc((size_t)rows * sizeof(int64_t) + 1);
}

static int gathers_rows_of_any_number(AgGroup* group, int rank, int size) {
  int64_t rows[8], *all = NULL;
  const int64_t count = rank + 1;
  for (int i = 0; i < count; ++i) rows[i] = 10 * rank + i;
  const AgTensor tensor = {rows, NULL, 1, &count};
  AgRequest request = ag_request("rows", AG_ALL_GATHER, AG_I64);
  request.num_tensors = 1, request.tensors = &tensor;
  CHECK(run(group, &request) == AG_INVALID_ARGUMENT && strstr(ag_last_error(), "needs `allocate`"));
  request.allocate = allocate, request.context = &all;
  CHECK(run(group, &request) == AG_OK);
  const int64_t* at = all;
  for (int from = 0; from < size; ++from) {
    for (int i = 0; i <= from; ++i) CHECK(*at++ == 10 * from + i);
  }
  free(all);
  return 0;
}

static int exchanges_rows(AgGroup* group, int rank, int size) {
  int64_t rows[64], splits[8], received[8], *own = NULL;
  const int64_t count = (int64_t)size * (rank + 1);
  for (int i = 0; i < count; ++i) rows[i] = 100 * rank + i / (rank + 1);
  for (int to = 0; to < size; ++to) splits[to] = rank + 1;
  const AgTensor tensor = {rows, NULL, 1, &count};
  AgRequest request = ag_request("exchange", AG_ALL_TO_ALL, AG_I64);
  request.num_tensors = 1, request.tensors = &tensor;
  request.allocate = allocate, request.context = &own;
  CHECK(run(group, &request) == AG_INVALID_ARGUMENT && strstr(ag_last_error(), "splits [] are no shares"));
  request.splits = splits;
  AgOperation* operation;
  CHECK(ag_start(group, &request, &operation) == AG_OK && ag_wait(operation) == AG_OK);
  CHECK(ag_received_rows(operation, received, 8) == (size_t)size);
  ag_operation_free(operation);
  const int64_t* at = own;
  for (int from = 0; from < size; ++from) {
    CHECK(received[from] == from + 1);
    for (int i = 0; i <= from; ++i) CHECK(*at++ == 100 * from + rank);
  }
  free(own);
  return 0;
}

static void note(void* context, AgStatus status, const char* error) {
  atomic_store((atomic_int*)context, status == AG_OK && error == NULL ? 1 : -1);
}

static int calls_back(AgGroup* group, int rank) {
  double value = rank == 1 ? 4.5 : 0;
  atomic_int is_done = 0;
  const AgTensor tensor = {&value, &value, 0, NULL};
  AgRequest request = ag_request("root", AG_BROADCAST, AG_F64);
  request.num_tensors = 1, request.tensors = &tensor, request.root = 1;
  AgOperation* operation;
  CHECK(ag_start(group, &request, &operation) == AG_OK);
  ag_when_done(operation, note, &is_done);
  CHECK(ag_wait(operation) == AG_OK);
  while (atomic_load(&is_done) == 0) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  ag_operation_free(operation);
  CHECK(atomic_load(&is_done) == 1 && value == 4.5);
  return 0;
}

static int tells_what_differs_and_goes_on(AgGroup* group, int rank) {
  int32_t values[2] = {1, 2};
  const int64_t count = rank == 0 ? 1 : 2;
  const AgTensor tensor = {values, values, 1, &count};
  AgRequest request = ag_request("differs", AG_ALL_REDUCE, AG_I32);
  request.num_tensors = 1, request.tensors = &tensor;
  CHECK(run(group, &request) == AG_INVALID_ARGUMENT);
  CHECK(strstr(ag_last_error(), "rank 0 has [1], but rank 1 has [2]"));
  request.type = (AgType)77;
  CHECK(run(group, &request) == AG_INVALID_ARGUMENT && strstr(ag_last_error(), "type 77"));
  const AgRequest barrier = ag_request("barrier", AG_BARRIER, AG_U8);
  CHECK(run(group, &barrier) == AG_OK);
  return 0;
}

static int has_parts(AgGroup* group, int rank, int size) {
  const int twice[] = {1, 1}, odd[] = {size - 1, 0};
  AgGroup* part;
  CHECK(ag_group_create_part(group, twice, 2, &part) == AG_INVALID_ARGUMENT && part == NULL);
  CHECK(ag_group_create_part(group, odd, 2, &part) == AG_OK && (part != NULL) == (rank == 0 || rank == size - 1));
  if (part == NULL) return 0;
  CHECK(ag_group_size(part) == 2 && ag_group_rank(part) == (rank != 0));
  int64_t value = rank;
  const AgTensor tensor = {&value, &value, 0, NULL};
  AgRequest request = ag_request("part", AG_ALL_REDUCE, AG_I64);
  request.num_tensors = 1, request.tensors = &tensor, request.reduction = AG_MAX;
  CHECK(run(part, &request) == AG_OK && value == size - 1);
  ag_group_free(part);
  return 0;
}

int run_operations(const char* rendezvous, int rank, int size) {
  AgGroup* group = NULL;
  if (ag_group_create(rendezvous, rank, size, NULL, &group) != AG_OK) {
    fprintf(stderr, "%s\n", ag_last_error());
    return __LINE__;
  }
  int failed = reduces_in_any_order(group, rank, size);
  if (!failed) failed = gathers_rows_of_any_number(group, rank, size);
  if (!failed) failed = exchanges_rows(group, rank, size);
  if (!failed) failed = calls_back(group, rank);
  if (!failed) failed = tells_what_differs_and_goes_on(group, rank);
  if (!failed) failed = has_parts(group, rank, size);
  const AgRequest join = ag_request("join", AG_JOIN, AG_U8);
  AgOperation* operation;
  if (!failed && (ag_start(group, &join, &operation) != AG_OK || ag_wait(operation) != AG_OK)) failed = __LINE__;
  if (!failed && (ag_last_joined(operation) < 0 || ag_last_joined(operation) >= size)) failed = __LINE__;
  if (!failed) ag_operation_free(operation);
  ag_group_free(group);
  return failed;
}
