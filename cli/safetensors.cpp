// What a header claims against what the file holds; mapping and writing of files.
#include "safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "file_writer.h"
#include "safetensors_header.h"

namespace kvscout::safetensors {
namespace {

struct KnownType {
  const char* name;
  int bits;
};
constexpr KnownType kTypes[] = {
    {"BOOL", 8},    {"U8", 8},   {"I8", 8},      {"F8_E4M3", 8}, {"F8_E5M2", 8},
    {"F8_E8M0", 8}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F8_E4M3FNUZ", 8},
    {"I16", 16},    {"U16", 16}, {"F16", 16},    {"BF16", 16},   {"F8_E5M2FNUZ", 8},
    {"I32", 32},    {"U32", 32}, {"F32", 32},    {"I64", 64},    {"U64", 64},
    {"F64", 64},    {"C64", 64},
};

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  throw FormatError("tensor " + one_line(name) + " " + what);
}

// Bytes of a tensor. Sizes of 0 count as 1 for the overflow check: strides are products of the
// others.
std::uint64_t bytes_of(const std::string& name, const HeaderEntry& entry) {
  const int bits = bits_of(entry.dtype);
  if (bits == 0) refuse(name, "has the unknown dtype " + one_line(entry.dtype));
  std::int64_t total = bits;
  bool empty = false;
  for (const std::uint64_t size : entry.shape) {
    if (size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) ||
        __builtin_mul_overflow(total, static_cast<std::int64_t>(std::max<std::uint64_t>(size, 1)),
                               &total))
      refuse(name, "has a shape of more than 2^63 bits");
    empty |= size == 0;
  }
  if (empty) return 0;
  if (total % 8 != 0) refuse(name, "does not end at a whole byte");
  return static_cast<std::uint64_t>(total / 8);
}

// A path, an action and errno as one line.
[[noreturn]] void io_error(const std::string& action, const std::string& path) {
  throw IoError("cannot " + action + " " + one_line(path) + ": " + std::strerror(errno));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

int bits_of(const std::string& dtype) {
  for (const KnownType& type : kTypes)
    if (dtype == type.name) return type.bits;
  return 0;
}

std::string one_line(std::string_view text) {
  std::string out = "'";
  for (const char c : text.substr(0, 200))
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? '?' : c;
  return out + (text.size() > 200 ? "...'" : "'");
}

Contents parse(std::span<std::uint8_t> file) {
  if (file.size() < 8)
    throw FormatError("has " + std::to_string(file.size()) + " bytes, expected at least 8");
  std::uint64_t length = 0;
  for (int i = 0; i < 8; ++i) length |= std::uint64_t{file[i]} << 8 * i;
  if (length > kMaxHeaderBytes)
    throw FormatError("header of " + std::to_string(length) + " bytes, expected at most 100000000");
  if (length > file.size() - 8)
    throw FormatError("header of " + std::to_string(length) + " bytes in a file of " +
                      std::to_string(file.size()));
  Header header = parse_header({reinterpret_cast<const char*>(file.data()) + 8, length});
  const std::span<std::uint8_t> data = file.subspan(8 + length);

  Contents contents;
  contents.metadata = std::move(header.metadata);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> extents;
  for (const auto& [name, entry] : header.tensors) {
    const std::uint64_t bytes = bytes_of(name, entry);
    const std::uint64_t begin = entry.offsets[0], end = entry.offsets[1];
    if (begin > end || end > data.size())
      refuse(name,
             "has data_offsets outside the " + std::to_string(data.size()) + " bytes of data");
    if (end - begin != bytes)
      refuse(name, "has " + std::to_string(end - begin) + " bytes, its shape needs " +
                       std::to_string(bytes));
    extents.emplace_back(begin, end);
    View& view = contents.tensors[name];
    view.dtype = entry.dtype;
    view.shape.assign(entry.shape.begin(), entry.shape.end());
    view.data = data.data() + begin;
    view.bytes = bytes;
  }
  std::sort(extents.begin(), extents.end());
  std::uint64_t at = 0;
  for (const auto& [begin, end] : extents) {
    if (begin != at)
      throw FormatError(std::string(begin > at ? "hole" : "overlap") + " in the data at byte " +
                        std::to_string(std::min(begin, at)));
    at = end;
  }
  if (at != data.size())
    throw FormatError(std::to_string(data.size() - at) + " bytes after the last tensor");
  return contents;
}

File::File(const std::string& path, Access access) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) io_error("open", path);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) io_error("read", path);
  if (!S_ISREG(info.st_mode))
    throw IoError("cannot map " + one_line(path) + ": not a regular file");
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size > 0) {
    const int protection = access == Access::private_copy ? PROT_READ | PROT_WRITE : PROT_READ;
    void* address = ::mmap(nullptr, size, protection, MAP_PRIVATE | MAP_NORESERVE, fd.get(), 0);
    if (address == MAP_FAILED) io_error("map", path);
    mapping_ = {static_cast<std::uint8_t*>(address), size};
  }
  try {
    contents_ = parse(mapping_);
  } catch (const FormatError& error) {
    if (size > 0) ::munmap(mapping_.data(), size);
    throw FormatError(one_line(path) + ": " + error.what());
  }
}

File::File(File&& other) noexcept
    : mapping_(std::exchange(other.mapping_, {})), contents_(std::move(other.contents_)) {}

File::~File() {
  if (!mapping_.empty()) ::munmap(mapping_.data(), mapping_.size());
}

void write(const std::string& path, const Contents& contents) {
  using Named = std::pair<const std::string, View>;
  std::vector<const Named*> order;
  for (const Named& item : contents.tensors) order.push_back(&item);
  std::stable_sort(order.begin(), order.end(), [](const Named* a, const Named* b) {
    return bits_of(a->second.dtype) > bits_of(b->second.dtype);
  });
  Header header{{}, contents.metadata};
  std::uint64_t at = 0;
  for (const Named* item : order) {
    const View& view = item->second;
    header.tensors[item->first] = {
        view.dtype, {view.shape.begin(), view.shape.end()}, {at, at + view.bytes}};
    at += view.bytes;
  }
  std::string text = header_text(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');

  std::uint8_t length[8];
  for (int i = 0; i < 8; ++i)
    length[i] = static_cast<std::uint8_t>(std::uint64_t{text.size()} >> 8 * i);
  std::vector<Chunk> chunks{{length, 8}, {text.data(), text.size()}};
  for (const Named* item : order) chunks.push_back({item->second.data, item->second.bytes});
  if (!write_file(path, chunks)) io_error("write", path);
}

}  // namespace kvscout::safetensors
