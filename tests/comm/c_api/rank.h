// SPDX-License-Identifier: Apache-2.0
// One rank of a job in C, as a user of the library would write it.
#ifndef AGSPEED_TESTS_COMM_C_API_RANK_H_
#define AGSPEED_TESTS_COMM_C_API_RANK_H_

#ifdef __cplusplus
extern "C" {
#endif

/// Runs operations of every kind with the other ranks. Returns the line of the first check that failed, or 0.
int run_operations(const char* rendezvous, int rank, int size);

#ifdef __cplusplus
}
#endif

#endif  // AGSPEED_TESTS_COMM_C_API_RANK_H_
