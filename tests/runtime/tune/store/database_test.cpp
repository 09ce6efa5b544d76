// SPDX-License-Identifier: Apache-2.0
#include "runtime/tune/store/database.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "runtime/base/format.h"
#include "runtime/tune/store/database_format.h"

namespace agspeed::runtime::tune {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::string makeKey(int graph) {
  return R"({"graph":"g)" + std::to_string(graph) +
         R"(","shapes":[[8,16]],"dtypes":["f32"],"device":"cpu","threads":2,"isa":"avx2","versions":{"torch":"2.11.0"}})";
}

std::string makeRecord(const std::string& arm) { return R"({"arm":")" + arm + R"(","reason":"measured"})"; }

/// A private folder per test, removed afterwards.
class TuningDatabaseTest : public ::testing::Test {
 protected:
  TuningDatabaseTest() {
    std::string pattern = (fs::temp_directory_path() / "agspeed_database_XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    file_ = (folder_ / "tuning.sqlite").string();
  }
  ~TuningDatabaseTest() override {
    std::error_code error;
    fs::permissions(folder_, fs::perms::owner_all, error);
    fs::remove_all(folder_, error);
  }

  void fill(int numRows) {
    TuningDatabase database(file_);
    for (int i = 0; i < numRows; ++i) ASSERT_TRUE(database.store(makeKey(i), makeRecord("native"), 100 + i).isOk());
    ASSERT_EQ(database.warning(), "");
  }
  /// Expects that the file is ignored: one warning says why, lookups miss, and stores are harmless.
  void expectIgnored(const std::string& why) {
    TuningDatabase database(file_);
    EXPECT_FALSE(database.isUsable());
    EXPECT_THAT(database.warning(), HasSubstr(why));
    EXPECT_THAT(database.warning(), HasSubstr("ignored"));
    EXPECT_FALSE(database.find(makeKey(0), 1).value().has_value());
    EXPECT_TRUE(database.store(makeKey(0), makeRecord("native"), 1).isOk());
    EXPECT_TRUE(database.list().empty());
  }
  void runSql(const std::string& sql) {
    sqlite3* connection = nullptr;
    ASSERT_EQ(sqlite3_open(file_.c_str(), &connection), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(connection, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK) << sql;
    sqlite3_close(connection);
  }

  fs::path folder_;
  std::string file_;
};

TEST_F(TuningDatabaseTest, RemembersAcrossInstances) {
  fill(3);
  TuningDatabase database(file_);
  EXPECT_THAT(database.find(makeKey(1), 200).value().value(), HasSubstr("\"arm\":\"native\""));
  EXPECT_FALSE(database.find(makeKey(9), 200).value().has_value());
  ASSERT_EQ(database.list().size(), 3u);
  EXPECT_EQ(database.list()[1].used, 101) << "hits are noted once an hour at most";
  EXPECT_TRUE(database.find(makeKey(1), 4000).value().has_value());
  EXPECT_EQ(database.list()[1].uses, 1);
  EXPECT_EQ(database.list()[1].used, 4000);
}

TEST_F(TuningDatabaseTest, CreatesPrivateFoldersAndFiles) {
  const std::string deep = (folder_ / "a" / "b" / "tuning.sqlite").string();
  TuningDatabase database(deep);
  EXPECT_TRUE(database.isUsable()) << database.warning();
  struct stat info{};
  ASSERT_EQ(stat(deep.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(stat((folder_ / "a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(TuningDatabaseTest, KeysIgnoreMemberOrderAndNeedAllMembers) {
  fill(1);
  TuningDatabase database(file_);
  const std::string other =
      R"({"versions":{"torch":"2.11.0"}, "isa":"avx2", "threads":2, "device":"cpu", "dtypes":["f32"], "shapes":[[8,16]], "graph":"g0"})";
  EXPECT_TRUE(database.find(other, 1).value().has_value());
  EXPECT_THAT(database.find(R"({"graph":"g0"})", 1).status().message(), HasSubstr("lacks \"device\""));
  EXPECT_FALSE(database.find("not json", 1).hasValue());
  EXPECT_FALSE(database.store(makeKey(0), "[]", 1).isOk());
  EXPECT_FALSE(database.store(makeKey(0), R"({"reason":"no arm"})", 1).isOk());
  EXPECT_FALSE(database.store(makeKey(0), makeRecord(std::string(2 << 20, 'x')), 1).isOk());
  EXPECT_TRUE(database.isUsable());
}

TEST_F(TuningDatabaseTest, AnUnfinishedRecordReplacesItsLikeAndNeverADecision) {
  TuningDatabase database(file_);
  const auto unfinished = [](int pairs) { return R"({"arm":"","pairs":)" + std::to_string(pairs) + "}"; };
  EXPECT_TRUE(database.storeUnfinished(makeKey(0), unfinished(1), 1).value());
  EXPECT_TRUE(database.storeUnfinished(makeKey(0), unfinished(2), 2).value());
  EXPECT_EQ(database.find(makeKey(0), 3).value().value(), unfinished(2));
  EXPECT_EQ(database.exportText().find("pairs"), std::string::npos);
  ASSERT_TRUE(database.store(makeKey(0), makeRecord("native"), 4).isOk());
  EXPECT_FALSE(database.storeUnfinished(makeKey(0), unfinished(3), 5).value());
  EXPECT_THAT(database.find(makeKey(0), 6).value().value(), HasSubstr("\"arm\":\"native\""));
  EXPECT_FALSE(database.storeUnfinished(makeKey(1), makeRecord("native"), 7).hasValue());
}

TEST_F(TuningDatabaseTest, AnUnfinishedRecordDoesNotWaitForALock) {
  fill(1);
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open(file_.c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  TuningDatabase database(file_);
  EXPECT_FALSE(database.storeUnfinished(makeKey(1), R"({"arm":""})", 1).value());
  ASSERT_EQ(sqlite3_exec(other, "COMMIT", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(other);
  EXPECT_TRUE(database.storeUnfinished(makeKey(1), R"({"arm":""})", 2).value());
}

TEST_F(TuningDatabaseTest, GarbageIsIgnored) {
  std::ofstream(file_) << std::string(5000, '\x7f');
  fs::permissions(file_, fs::perms::owner_read | fs::perms::owner_write);
  expectIgnored("");
  EXPECT_EQ(fs::file_size(file_), 5000u) << "a file of another program is left alone";
}

TEST_F(TuningDatabaseTest, AForeignDatabaseIsLeftAlone) {
  runSql("CREATE TABLE other(x); INSERT INTO other VALUES (1)");
  fs::permissions(file_, fs::perms::owner_read | fs::perms::owner_write);
  expectIgnored("not written by agspeed");
}

TEST_F(TuningDatabaseTest, OtherFormatVersionsAreIgnored) {
  for (const int version : {0, 2, 99}) {
    fs::remove(file_);
    fill(1);
    runSql("PRAGMA user_version=" + std::to_string(version));
    expectIgnored("format version " + std::to_string(version));
  }
}

TEST_F(TuningDatabaseTest, ReplacedSchemaIsIgnored) {
  fill(1);
  runSql("DROP TABLE decisions; CREATE VIEW decisions AS SELECT 1 AS key");
  TuningDatabase database(file_);
  EXPECT_FALSE(database.find(makeKey(0), 1).value().has_value());
  EXPECT_NE(database.warning(), "");
}

TEST_F(TuningDatabaseTest, EveryTruncationIsSurvived) {
  fill(12);
  const auto size = fs::file_size(file_);
  const std::string copy = (folder_ / "whole").string();
  fs::copy_file(file_, copy);
  for (uintmax_t length = 0; length < size; length += 1021) {
    fs::copy_file(copy, file_, fs::copy_options::overwrite_existing);
    fs::resize_file(file_, length);
    TuningDatabase database(file_);
    const auto found = database.find(makeKey(6), 1);
    ASSERT_TRUE(found.hasValue()) << "length " << length;
    const bool isSilentLoss = database.isUsable() && database.warning().empty() && !found->has_value();
    EXPECT_FALSE(length > 0 && isSilentLoss) << "length " << length;
  }
}

TEST_F(TuningDatabaseTest, BitFlipsNeverYieldAWrongRecord) {
  fill(12);
  const std::string copy = (folder_ / "whole").string();
  fs::copy_file(file_, copy);
  const auto size = fs::file_size(file_);
  std::mt19937_64 random(77);
  for (int trial = 0; trial < 300; ++trial) {
    fs::copy_file(copy, file_, fs::copy_options::overwrite_existing);
    const auto position = static_cast<std::streamoff>(random() % size);
    const int bit = static_cast<int>(random() % 8);
    std::fstream stream(file_, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(position);
    const char byte = static_cast<char>(stream.get() ^ (1 << bit));
    stream.seekp(position);
    stream.put(byte);
    stream.close();
    TuningDatabase database(file_);
    for (int i = 0; i < 12; ++i) {
      const auto found = database.find(makeKey(i), 1);
      ASSERT_TRUE(found.hasValue());
      EXPECT_EQ(found->value_or(makeRecord("native")), makeRecord("native"))
          << "seed 77, byte " << position << ", bit " << bit;
    }
    database.list();
  }
}

TEST_F(TuningDatabaseTest, ATamperedRowIsTreatedAsAbsent) {
  fill(2);
  runSql("UPDATE decisions SET record = '{\"arm\":\"evil\"}' WHERE key LIKE '%g0%'");
  TuningDatabase database(file_);
  EXPECT_FALSE(database.find(makeKey(0), 1).value().has_value());
  EXPECT_THAT(database.warning(), HasSubstr("damaged row"));
  EXPECT_TRUE(database.find(makeKey(1), 1).value().has_value());
  EXPECT_EQ(database.prune(0, 100), 1) << "pruning removes damaged rows";
}

TEST_F(TuningDatabaseTest, WorldOrGroupWritableFilesAreIgnored) {
  fill(1);
  for (const mode_t mode : {0602, 0620, 0666}) {
    ASSERT_EQ(chmod(file_.c_str(), mode), 0);
    expectIgnored("others may write");
  }
}

TEST_F(TuningDatabaseTest, WorldWritableFolderIsIgnored) {
  fill(1);
  ASSERT_EQ(chmod(folder_.c_str(), 0777), 0);
  expectIgnored("all users may write to the folder");
}

TEST_F(TuningDatabaseTest, ReadOnlyFileOrFolderIsIgnored) {
  fill(1);
  ASSERT_EQ(chmod(file_.c_str(), 0400), 0);
  expectIgnored("read-only");
  ASSERT_EQ(chmod(file_.c_str(), 0600), 0);
  ASSERT_EQ(chmod(folder_.c_str(), 0500), 0);
  expectIgnored("read-only");
}

TEST_F(TuningDatabaseTest, LinksAndFoldersInItsPlaceAreIgnored) {
  const std::string target = (folder_ / "target").string();
  std::ofstream(target) << "";
  fs::create_symlink(target, file_);
  expectIgnored("not a regular file");
  fs::remove(file_);
  fs::create_directory(file_);
  expectIgnored("not a regular file");
}

TEST_F(TuningDatabaseTest, ForeignOwnersAreIgnored) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  fill(1);
  ASSERT_EQ(chown(file_.c_str(), 4321, static_cast<gid_t>(-1)), 0);
  expectIgnored("belongs to user 4321");
  ASSERT_EQ(chown(file_.c_str(), 0, static_cast<gid_t>(-1)), 0);
  std::ofstream(file_ + "-journal") << "planted";
  ASSERT_EQ(chown((file_ + "-journal").c_str(), 4321, static_cast<gid_t>(-1)), 0);
  expectIgnored("-journal");
}

TEST_F(TuningDatabaseTest, ManyProcessesWriteAtOnce) {
  constexpr int kProcesses = 4;
  constexpr int kRows = 6;
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      TuningDatabase database(file_);
      bool isOk = database.isUsable();
      for (int i = 0; i < kRows; ++i) {
        isOk = database.store(makeKey(process * kRows + i), makeRecord("native"), 5).isOk() && isOk;
        isOk = database.store(makeKey(100000), makeRecord("native"), 5).isOk() && isOk;
      }
      _exit(isOk && database.warning().empty() ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  TuningDatabase database(file_);
  EXPECT_EQ(database.warning(), "");
  EXPECT_GE(database.list().size(), kProcesses * kRows + 1u) << "5 s are long enough for a lock";
}

TEST_F(TuningDatabaseTest, ExportsAndImports) {
  fill(3);
  const std::string text = TuningDatabase(file_).exportText();
  TuningDatabase other((folder_ / "other.sqlite").string());
  EXPECT_EQ(other.importText(text, 500).value(), 3);
  EXPECT_TRUE(other.find(makeKey(2), 1).value().has_value());
  EXPECT_EQ(other.importText(text, 500).value(), 0) << "what is known already is kept";
}

TEST_F(TuningDatabaseTest, ImportTakesAllOrNothing) {
  fill(2);
  TuningDatabase other((folder_ / "other.sqlite").string());
  std::string text = TuningDatabase(file_).exportText() + "{\"key\":{},\"record\":{}}\n";
  EXPECT_THAT(other.importText(text, 1).status().message(), HasSubstr("line 4"));
  EXPECT_THAT(other.importText("", 1).status().message(), HasSubstr("empty"));
  EXPECT_THAT(other.importText("{\"format\":\"x\"}\n", 1).status().message(), HasSubstr("line 1"));
  EXPECT_TRUE(other.list().empty());
}

std::string nested(int depth) {
  return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
}

TEST_F(TuningDatabaseTest, ARecordNestedDeepIsNoRecord) {
  fill(1);
  const std::string record = R"({"arm":"native","reason":)" + nested(200'000) + "}";
  EXPECT_FALSE(TuningDatabase(file_).store(makeKey(0), record, 1).isOk());
  EXPECT_FALSE(
      TuningDatabase(file_).storeUnfinished(makeKey(0), R"({"arm":"","x":)" + nested(200'000) + "}", 1).hasValue());
  const std::string key = canonicalKey(makeKey(0)).value();
  runSql(formatText("UPDATE decisions SET record = '{}', crc32 = {}", record, decisionChecksum(key, record)));
  TuningDatabase database(file_);
  EXPECT_FALSE(database.find(makeKey(0), 1).value().has_value());
  EXPECT_THAT(database.warning(), HasSubstr("damaged row"));
  EXPECT_FALSE(database.list().front().isIntact);
  EXPECT_FALSE(canonicalKey(R"({"graph":)" + nested(200'000) + "}").hasValue());
}

TEST_F(TuningDatabaseTest, ARowWithTimesThatNoClockShowsIsNoRow) {
  for (const char* change : {"used = 4611686018427387904", "used = -1", "created = 253402300800", "uses = -1",
                             "uses = 9223372036854775807"}) {
    fill(1);
    runSql(std::string("UPDATE decisions SET ") + change);
    TuningDatabase database(file_);
    EXPECT_FALSE(database.find(makeKey(0), 1000).value().has_value()) << change;
    EXPECT_EQ(database.prune(0, 100), 1) << change;
  }
}

TEST_F(TuningDatabaseTest, AnImportedTimeToComeKeepsNoLaterDecisionOut) {
  fill(1);
  const std::string lines = TuningDatabase(file_).exportText();
  TuningDatabase other((folder_ / "other.sqlite").string());
  const auto importedAt = [&](const std::string& created) {
    std::string text = lines;
    text.replace(text.find("\"created\":100"), 13, "\"created\":" + created);
    return other.importText(text, 500);
  };
  ASSERT_EQ(importedAt("90000000000").value(), 1);
  EXPECT_EQ(other.list().front().created, 500);
  for (const char* created : {"-1", "1180591620717411303424", "9223372036854775807", "1e400", "\"7\""}) {
    EXPECT_FALSE(importedAt(created).hasValue()) << created;
  }
}

TEST_F(TuningDatabaseTest, SpoiledExportsAreRefusedOrTakenAndNeverEndTheProcess) {
  fill(3);
  const std::string good = TuningDatabase(file_).exportText();
  const uint64_t seed = std::random_device()();
  std::mt19937_64 random(seed);
  TuningDatabase other((folder_ / "other.sqlite").string());
  for (int round = 0; round < 3000; ++round) {
    std::string text = good;
    for (size_t numChanges = random() % 4 + 1; numChanges > 0; --numChanges) {
      const size_t at = random() % text.size();
      switch (random() % 4) {
        case 0: text[at] = static_cast<char>(random()); break;
        case 1: text.erase(at, random() % 40); break;
        case 2: text.insert(at, nested(static_cast<int>(random() % 300))); break;
        default: text.insert(at, text.substr(random() % text.size(), random() % 60));
      }
      if (text.empty()) text = " ";
    }
    SCOPED_TRACE(formatText("seed {}, round {}", seed, round));
    if (!other.importText(text, 500).hasValue()) continue;
    for (const DatabaseRow& row : other.list()) EXPECT_TRUE(row.isIntact);
  }
}

TEST_F(TuningDatabaseTest, PrunesByAgeAndCount) {
  fill(10);
  TuningDatabase database(file_);
  EXPECT_EQ(database.prune(103, 100), 3);
  EXPECT_EQ(database.prune(0, 2), 5);
  EXPECT_EQ(database.list().size(), 2u);
  EXPECT_EQ(database.list().back().created, 109);
}

TEST(DecisionChecksum, IsZlibsCrc32) { EXPECT_EQ(decisionChecksum("123", "456"), 0x72a20f0bu); }

}  // namespace
}  // namespace agspeed::runtime::tune
