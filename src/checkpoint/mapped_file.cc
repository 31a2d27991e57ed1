#include "checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/huge_pages.h"

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

// Memory that can be had without writing anything out; 0 if the system does not say.
size_t available_bytes() {
  std::ifstream info("/proc/meminfo");
  for (std::string name; info >> name;) {
    size_t kib = 0;
    if (name == "MemAvailable:" && info >> kib) return kib * 1024;
  }
  return 0;
}

// The file's bytes in anonymous memory, or null. File pages are 4 KiB and scattered; huge_pages.h says what that costs
// whoever streams through them once a token.
void* copy_of(int fd, size_t size) {
  void* copy = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return nullptr;
  ::madvise(copy, size, MADV_HUGEPAGE);
  for (size_t done = 0; done < size;) {
    const ssize_t got = ::pread(fd, static_cast<char*>(copy) + done, size - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      ::munmap(copy, size);
      return nullptr;
    }
    done += static_cast<size_t>(got);
  }
  ::mprotect(copy, size, PROT_READ);
  return copy;
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) return io_error(path, "cannot open the file", errno);
  struct stat status {};
  if (::fstat(file.fd, &status) != 0) return io_error(path, "cannot read the file's size", errno);
  if (!S_ISREG(status.st_mode)) return io_error(path, "not a regular file", EINVAL);
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) return MappedFile(nullptr, 0);
  if (size >= 2 * kHugePageBytes && size <= available_bytes() / 2) {
    if (void* copy = copy_of(file.fd, size)) return MappedFile(static_cast<const std::byte*>(copy), size);
  }
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
