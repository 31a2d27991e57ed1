#include "base/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace assay {

Result<std::string> read_file(const std::string& path) {
  const auto failed = [&] { return Error{ErrorKind::kIo, "cannot read the file", path, std::strerror(errno), "", ""}; };
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return failed();
  std::string text;
  char chunk[1 << 16];
  for (;;) {
    const ssize_t count = read(file, chunk, sizeof(chunk));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      Error error = failed();
      close(file);
      return error;
    }
    if (count == 0) break;
    text.append(chunk, static_cast<size_t>(count));
  }
  close(file);
  return text;
}

}  // namespace assay
