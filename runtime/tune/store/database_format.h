// SPDX-License-Identifier: Apache-2.0
// Constants of the file tuning.sqlite, shared by the reader and the writer. database_format.md describes the format;
// python/agspeed/cli reads it with Python's sqlite3 alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace agspeed::runtime::tune {

inline constexpr int32_t kDatabaseApplicationId = 0x41475344;  ///< "AGSD", PRAGMA application_id
inline constexpr int32_t kDatabaseVersion = 1;                 ///< PRAGMA user_version
inline constexpr std::string_view kExportFormat = "agspeed-tuning";
inline constexpr size_t kMaxKeyBytes = size_t{64} << 10;
inline constexpr size_t kMaxRecordBytes = size_t{1} << 20;
inline constexpr int64_t kLatestTime = 253402300799;  ///< the last second of the year 9999
inline constexpr int64_t kMaxUses = int64_t{1} << 53;

inline constexpr std::string_view kCreateTables =
    "CREATE TABLE IF NOT EXISTS decisions("
    "key TEXT PRIMARY KEY NOT NULL, record TEXT NOT NULL, crc32 INTEGER NOT NULL, "
    "created INTEGER NOT NULL, used INTEGER NOT NULL, uses INTEGER NOT NULL)";

/// CRC-32 (IEEE, as zlib's) of key, one zero byte, record.
uint32_t decisionChecksum(std::string_view key, std::string_view record);

}  // namespace agspeed::runtime::tune
