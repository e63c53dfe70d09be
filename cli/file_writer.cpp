#include "file_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

namespace kvscout {
namespace {

bool write_all(int fd, std::span<const Chunk> chunks) {
  for (const Chunk& chunk : chunks) {
    const char* next = static_cast<const char*>(chunk.data);
    std::size_t left = chunk.bytes;
    while (left > 0) {
      const ssize_t done = ::write(fd, next, std::min<std::size_t>(left, 1 << 30));
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) return false;
      next += done;
      left -= static_cast<std::size_t>(done);
    }
  }
  return true;
}

// Opens, writes, closes. fsync, because some file systems find out only then that the disk is full.
bool write_to(const std::string& path, int flags, std::span<const Chunk> chunks, bool sync) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | flags, 0666);
  if (fd < 0) return false;
  const bool written = write_all(fd, chunks) && (!sync || ::fsync(fd) == 0);
  const int reason = errno;
  const bool closed = ::close(fd) == 0;
  if (!written) errno = reason;
  return written && closed;
}

}  // namespace

bool write_file(const std::string& path, std::span<const Chunk> chunks) {
  struct stat info {};
  const bool exists = ::stat(path.c_str(), &info) == 0;
  if (exists && S_ISDIR(info.st_mode)) {
    errno = EISDIR;
    return false;
  }
  if (exists && !S_ISREG(info.st_mode)) return write_to(path, 0, chunks, false);

  std::error_code unresolved;  // a link stays a link: its target is replaced
  const std::filesystem::path resolved = exists ? std::filesystem::canonical(path, unresolved) : "";
  const std::string target = exists && !unresolved ? resolved.string() : path;
  const std::string temporary = target + ".tmp" + std::to_string(::getpid());
  if (write_to(temporary, O_CREAT | O_EXCL, chunks, true) &&
      ::rename(temporary.c_str(), target.c_str()) == 0)
    return true;
  const int reason = errno;
  if (reason != EEXIST) ::unlink(temporary.c_str());
  errno = reason;
  return false;
}

}  // namespace kvscout
