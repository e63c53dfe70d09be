// .safetensors files: named tensors in one file, with a JSON header in front.
//
//   8 bytes   length n of the header, little endian
//   n bytes   {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
//              "__metadata__": {"key": "value", ...}}, padded with spaces
//   the rest  the tensors, row-major, little endian, without holes; offsets count from here
//
// The reader maps the file, so that a file may be larger than memory, and believes nothing: every
// file that it accepts has exactly the bytes that its header describes. The writer writes beside
// the target and renames, so that the target is either the old file or the whole new one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace kvscout::safetensors {

inline constexpr std::size_t kMaxHeaderBytes =
    100'000'000;  // the limit of the format's own library

// One line that says what is wrong with the contents of a file.
struct FormatError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One line with the path and the system's reason.
struct IoError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Bits of one element of `dtype` ("U8", "BF16", ...); 0 for a name that the format does not know.
int bits_of(const std::string& dtype);

struct View {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint8_t* data = nullptr;  // any alignment
  std::size_t bytes = 0;
};

using Metadata = std::map<std::string, std::string, std::less<>>;

struct Contents {
  std::map<std::string, View, std::less<>> tensors;
  Metadata metadata;
};

// The contents of a file's bytes, as views into them. Throws FormatError.
Contents parse(std::span<std::uint8_t> file);

// A mapped file and its contents.
class File {
 public:
  enum class Access {
    read_only,
    private_copy
  };  // private_copy: may be written, the file stays as it is

  explicit File(const std::string& path,
                Access access = Access::read_only);  // FormatError, IoError
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&&) = delete;

  const Contents& contents() const { return contents_; }

 private:
  std::span<std::uint8_t> mapping_;
  Contents contents_;
};

// Writes `contents` to `path`: the data of wide types first, so that every tensor is aligned.
// Throws IoError and leaves what was at `path` before. A device or pipe is written to directly.
void write(const std::string& path, const Contents& contents);

// `text` in quotes, on one line, whatever bytes it holds; long text is cut.
std::string one_line(std::string_view text);

}  // namespace kvscout::safetensors
