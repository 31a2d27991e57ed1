#include "checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace assay::checkpoint {
namespace {

Error io_error(const std::string& path, const char* what, int error_number) {
  return {.kind = ErrorKind::kIo,
          .what = what,
          .where = path,
          .got = std::strerror(error_number),
          .wanted = "",
          .hint = ""};
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) return io_error(path, "cannot open the file", errno);
  struct stat status {};
  if (::fstat(file.fd, &status) != 0) return io_error(path, "cannot read the file's size", errno);
  if (!S_ISREG(status.st_mode)) return io_error(path, "not a regular file", EINVAL);
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) return MappedFile(nullptr, 0);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (address == MAP_FAILED) return io_error(path, "cannot map the file", errno);
  return MappedFile(static_cast<const std::byte*>(address), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace assay::checkpoint
