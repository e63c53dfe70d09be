// The .safetensors reader refuses every file whose bytes are not exactly what its header says; the
// writer leaves the old file or the whole new one.
#include "safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

namespace kvscout::safetensors {
namespace {

namespace fs = std::filesystem;

std::vector<std::uint8_t> file_of(const std::string& header, std::size_t data_bytes,
                                  std::uint64_t length_field) {
  std::vector<std::uint8_t> bytes(8 + header.size() + data_bytes);
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<std::uint8_t>(length_field >> 8 * i);
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  for (std::size_t i = 0; i < data_bytes; ++i)
    bytes[8 + header.size() + i] = static_cast<std::uint8_t>(i);
  return bytes;
}
std::vector<std::uint8_t> file_of(const std::string& header, std::size_t data_bytes) {
  return file_of(header, data_bytes, header.size());
}

// What parse says about the file; "" if it accepts.
std::string complaint(std::vector<std::uint8_t> bytes) {
  try {
    parse(bytes);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "";
}
std::string complaint(const std::string& header, std::size_t data_bytes) {
  return complaint(file_of(header, data_bytes));
}

TEST(SafetensorsRead, AcceptsTensorsMetadataPaddingAndEmptyTensors) {
  auto bytes = file_of(
      R"({"__metadata__":{"a":"1","b":"x"},"m":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
      R"("e":{"dtype":"I64","shape":[3,0],"data_offsets":[8,8]},"s":{"dtype":"U8","shape":[],"data_offsets":[8,9]}}   )",
      9);
  const Contents c = parse(bytes);
  ASSERT_EQ(c.tensors.size(), 3u);
  EXPECT_EQ(c.metadata.at("b"), "x");
  EXPECT_EQ(c.tensors.at("m").shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(c.tensors.at("m").bytes, 8u);
  EXPECT_EQ(c.tensors.at("e").bytes, 0u);
  EXPECT_EQ(*c.tensors.at("s").data, 8);
  EXPECT_EQ(complaint("{}", 0), "");
}

TEST(SafetensorsRead, RefusesLengthsThatDoNotFit) {
  EXPECT_NE(complaint(std::vector<std::uint8_t>{}), "");
  EXPECT_NE(complaint(std::vector<std::uint8_t>(7)), "");
  EXPECT_NE(complaint(std::vector<std::uint8_t>(8)), "");  // an empty header
  for (const std::uint64_t length :
       {3ull, 100'000'001ull, 1ull << 63, ~0ull, ~0ull - 7, (1ull << 63) - 1})
    EXPECT_NE(complaint(file_of("{}", 0, length)), "") << length;
}

struct BadHeader {
  const char* part;  // of the message
  std::string header;
  std::size_t data_bytes;
};

TEST(SafetensorsRead, RefusesHeadersThatLie) {
  const BadHeader bad[] = {
      {"hole", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3},
      {"hole",
       R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}})",
       4},
      {"overlap",
       R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3},
      {"after the last", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 3},
      {"after the last", "{}", 1},
      {"outside", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 1},
      {"outside", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[2,0]}})", 2},
      {"outside", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[18446744073709551614,0]}})", 2},
      {"its shape needs 4", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,2]}})", 2},
      {"its shape needs 4", R"({"a":{"dtype":"F16","shape":[2],"data_offsets":[0,2]}})", 2},
      {"unknown dtype", R"({"a":{"dtype":"F31","shape":[2],"data_offsets":[0,2]}})", 2},
      {"unknown dtype", R"({"a":{"dtype":"u8","shape":[2],"data_offsets":[0,2]}})", 2},
      {"whole byte", R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2},
      {"2^63", R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,0]}})", 0},
      {"2^63", R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0},
      {"2^63", R"({"a":{"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}})", 0},
      {"2^63", R"({"a":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})", 0},
      {"twice",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       1},
      {"twice",
       R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\u0061":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       1},
      {"twice", R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1},
      {"twice", R"({"__metadata__":{"x":"1","x":"2"}})", 0},
      {"twice", R"({"__metadata__":{},"__metadata__":{}})", 0},
      {"unknown field", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"stride":[1]}})", 1},
      {"lacks", R"({"a":{"dtype":"U8","shape":[1]}})", 1},
      {"lacks", R"({"a":{}})", 0},
      {"lacks", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8"}})", 1},
      {"two numbers", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1},
      {"two numbers", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 1},
      {"negative", R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1},
      {"integer", R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1},
      {"integer", R"({"a":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,1]}})", 1},
      {"where none belongs", R"({"a":{"dtype":["U8"],"shape":[1],"data_offsets":[0,1]}})", 1},
      {"where none belongs", R"({"a":{"dtype":{},"shape":[1],"data_offsets":[0,1]}})", 1},
      {"where none belongs", R"({"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", 1},
      {"where none belongs", R"({"a":{"dtype":"U8","shape":null,"data_offsets":[0,1]}})", 1},
      {"where none belongs", R"({"a":true})", 0},
      {"where none belongs", R"({"__metadata__":{"x":1}})", 0},
      {"where none belongs", R"({"__metadata__":{"x":{}}})", 0},
      {"where none belongs", R"({"__metadata__":null})", 0},
      {"not valid JSON", "{", 0},
      {"not valid JSON", "{}}", 0},
      {"not valid JSON", "{} {}", 0},
      {"not valid JSON", "{\"a\xff\":1}", 0},
      {"does not begin", "[]", 0},
      {"does not begin", " {}", 0},
      {"does not begin", "\xef\xbb\xbf{}", 0},
      {"zero byte", std::string("{}\0garbage", 10), 0},
  };
  for (const BadHeader& b : bad) {
    const std::string said = complaint(b.header, b.data_bytes);
    EXPECT_NE(said.find(b.part), said.npos) << b.header << "\n  said: " << said;
    EXPECT_EQ(said.find('\n'), said.npos) << said;
  }
  std::string deep = "{\"a\":" + std::string(1'000'000, '[');
  EXPECT_NE(complaint(deep, 0), "");
  std::string rank = R"({"a":{"dtype":"U8","shape":[1)";
  for (int i = 0; i < 64; ++i) rank += ",1";
  EXPECT_NE(complaint(rank + R"(],"data_offsets":[0,1]}})", 1), "");
}

TEST(SafetensorsRead, EveryTruncationAndEveryGrowthIsRefused) {
  const auto whole = file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4);
  ASSERT_EQ(complaint(whole), "");
  for (std::size_t n = 0; n < whole.size(); ++n)
    EXPECT_NE(complaint(std::vector<std::uint8_t>(whole.begin(), whole.begin() + n)), "") << n;
  auto grown = whole;
  grown.push_back(0);
  EXPECT_NE(complaint(grown), "");
}

TEST(SafetensorsRead, MessagesAreOneShortLine) {
  const std::string said = complaint("{\"a\\n\\u001b" + std::string(5000, 'x') +
                                         R"(":{"dtype":"?","shape":[],"data_offsets":[0,0]}})",
                                     0);
  EXPECT_NE(said.find("unknown dtype"), said.npos) << said;
  EXPECT_EQ(said.find('\n'), said.npos);
  EXPECT_EQ(said.find('\033'), said.npos);
  EXPECT_LT(said.size(), 400u);
}

// ---- files
// ---------------------------------------------------------------------------------------

class SafetensorsFile : public ::testing::Test {
 protected:
  SafetensorsFile() {
    std::string pattern = (fs::temp_directory_path() / "kvscout-XXXXXX").string();
    directory_ = ::mkdtemp(pattern.data());
  }
  ~SafetensorsFile() override { fs::remove_all(directory_); }
  std::string path(const char* name) const { return (directory_ / name).string(); }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(directory_), {}));
  }

  Contents sample() {
    Contents c;
    c.metadata = {{"causal", "1"}, {"quote", "a \"b\"\n\xc3\xa9"}};
    c.tensors["bytes"] = {"U8", {3}, reinterpret_cast<std::uint8_t*>(bytes_), 3};
    c.tensors["scores"] = {"F32", {1, 2}, reinterpret_cast<std::uint8_t*>(scores_), 8};
    c.tensors["slots"] = {"I64", {1}, reinterpret_cast<std::uint8_t*>(&slot_), 8};
    c.tensors["none"] = {"I32", {0, 5}, nullptr, 0};
    return c;
  }

  fs::path directory_;
  std::uint8_t bytes_[3] = {1, 2, 255};
  float scores_[2] = {-0.5f, 3.0f};
  std::int64_t slot_ = -7;
};

TEST_F(SafetensorsFile, RoundTripIsExactAndAligned) {
  write(path("a"), sample());
  const File file(path("a"));
  const Contents& c = file.contents();
  const Contents expected = sample();
  EXPECT_EQ(c.metadata, expected.metadata);
  ASSERT_EQ(c.tensors.size(), expected.tensors.size());
  for (const auto& [name, view] : expected.tensors) {
    const View& got = c.tensors.at(name);
    EXPECT_EQ(got.dtype, view.dtype);
    EXPECT_EQ(got.shape, view.shape);
    ASSERT_EQ(got.bytes, view.bytes);
    EXPECT_TRUE(view.bytes == 0 || std::memcmp(got.data, view.data, view.bytes) == 0);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(got.data) % (bits_of(view.dtype) / 8), 0u) << name;
  }
  EXPECT_EQ(files(), 1u);  // no temporary file is left
}

TEST_F(SafetensorsFile, TheInputMayBeTheOutput) {
  write(path("a"), sample());
  const File file(path("a"), File::Access::private_copy);
  Contents c = file.contents();
  c.tensors["bytes"].data[0] = 9;  // a private copy
  EXPECT_EQ(*File(path("a")).contents().tensors.at("bytes").data, 1);
  write(path("a"), c);
  EXPECT_EQ(*File(path("a")).contents().tensors.at("bytes").data, 9);
  EXPECT_EQ(c.tensors["bytes"].data[1], 2);  // the old mapping still holds the old file
}

TEST_F(SafetensorsFile, ALinkStaysALink) {
  write(path("a"), sample());
  fs::create_symlink(path("a"), path("link"));
  Contents c = sample();
  c.metadata["new"] = "1";
  write(path("link"), c);
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(File(path("a")).contents().metadata.at("new"), "1");
}

std::string io_complaint(const std::function<void()>& action) {
  try {
    action();
  } catch (const IoError& error) {
    return error.what();
  }
  return "";
}

TEST_F(SafetensorsFile, ErrorsOfTheSystemAreOneLine) {
  EXPECT_NE(io_complaint([&] { File(path("absent")); }).find("No such file"), std::string::npos);
  EXPECT_NE(io_complaint([&] { File{directory_.string()}; }), "");
  EXPECT_NE(io_complaint([&] { File{"/dev/zero"}; }), "");
  EXPECT_NE(io_complaint([&] { write(directory_.string(), sample()); }), "");
  EXPECT_NE(io_complaint([&] { write(path("no/such/folder"), sample()); }), "");
  EXPECT_EQ(files(), 0u);
  std::ofstream(path("empty")).close();
  EXPECT_THROW(File{path("empty")}, FormatError);
}

TEST_F(SafetensorsFile, AFullDiskIsOneLine) {
  if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "not run: no /dev/full";
  const std::string said = io_complaint([&] { write("/dev/full", sample()); });
  EXPECT_NE(said.find("No space left"), said.npos) << said;
  struct stat info {};
  ASSERT_EQ(::stat("/dev/full", &info), 0);
  EXPECT_TRUE(S_ISCHR(info.st_mode));  // it was not replaced by a file
}

}  // namespace
}  // namespace kvscout::safetensors
