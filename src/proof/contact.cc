#include "proof/contact.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <thread>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "proof/verdict_json.h"

namespace assay::proof {
namespace {

std::string key_of(std::string_view op, std::string_view desc, std::string_view row) {
  return fmt::format("{}\t{}\t{}", op, desc, row);
}

void write_all(int file, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t count = write(file, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;  // the other side is gone: it is noticed where answers are read
    done += static_cast<size_t>(count);
  }
}

// A child with pipes to its standard input and output.
class Child {
 public:
  explicit Child(const ContactOptions& options) {
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0) return;
    if (pipe2(out, O_CLOEXEC) != 0) {
      close(in[0]);
      close(in[1]);
      return;
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    std::vector<std::string> arguments = options.command, environment;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string name(*entry, std::strcspn(*entry, "="));
      const bool replaced = std::any_of(options.environment.begin(), options.environment.end(),
                                        [&](const std::string& own) { return own.starts_with(name + "="); });
      if (!replaced) environment.emplace_back(*entry);
    }
    environment.insert(environment.end(), options.environment.begin(), options.environment.end());
    std::vector<char*> argv, envp;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    for (std::string& entry : environment) envp.push_back(entry.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
    if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), envp.data()) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    in_ = in[1];
    out_ = out[0];
  }
  ~Child() { stop(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  bool started() const { return pid_ > 0; }

  void send(const std::string& text) {
    // A child that dies at once must not take this process along.
    struct sigaction ignore = {}, before = {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &ignore, &before);
    write_all(in_, text);
    sigaction(SIGPIPE, &before, nullptr);
    close(in_);
    in_ = -1;
  }

  enum class Next { kLine, kEnd, kTimeout };
  Next line(std::string& text, int64_t timeout_ms) {
    const int64_t deadline = now_us() + timeout_ms * 1000;
    for (;;) {
      const size_t end = buffer_.find('\n');
      if (end != std::string::npos) {
        text = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return Next::kLine;
      }
      const int64_t left_ms = (deadline - now_us()) / 1000;
      if (left_ms <= 0) return Next::kTimeout;
      pollfd waiting{out_, POLLIN, 0};
      const int ready = poll(&waiting, 1, static_cast<int>(std::min<int64_t>(left_ms, 1 << 30)));
      if (ready < 0 && errno != EINTR) return Next::kEnd;
      if (ready <= 0) continue;
      char chunk[4096];
      const ssize_t count = read(out_, chunk, sizeof(chunk));
      if (count == 0 || (count < 0 && errno != EINTR)) return Next::kEnd;
      if (count > 0) buffer_.append(chunk, static_cast<size_t>(count));
    }
  }

  // Ends it if it still runs; says how it ended.
  std::string stop() {
    if (in_ >= 0) close(in_);
    if (out_ >= 0) close(out_);
    in_ = out_ = -1;
    if (pid_ <= 0) return "it did not start";
    int status = 0;
    pid_t ended = 0;
    for (int i = 0; i < 100 && ended == 0; ++i) {  // an exit that is under way has a second
      ended = waitpid(pid_, &status, WNOHANG);
      if (ended == 0) usleep(i < 10 ? 1000 : 10'000);
      if (killed_) break;
    }
    if (ended == 0) {
      ::kill(pid_, SIGKILL);
      waitpid(pid_, &status, 0);
    }
    pid_ = -1;
    if (WIFSIGNALED(status)) return fmt::format("signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
    return fmt::format("exit code {}", WEXITSTATUS(status));
  }
  void kill_now() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    killed_ = true;
  }

 private:
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
  bool killed_ = false;
  std::string buffer_;
};

// Runs one child for the rows that are left; takes off the list what it settled.
class Round {
 public:
  Round(std::vector<Verdict>& left, const ContactOptions& options, KernelSink& sink)
      : left_(left), options_(options), sink_(sink), child_(options) {}

  void run() {
    if (!child_.started()) return fail_all("the child process did not start");
    std::string request;
    for (const Verdict& row : left_) request += key_of(row.op, row.desc, row.row) + "\n";
    child_.send(request);
    while (!left_.empty()) {
      std::string line;
      switch (child_.line(line, begun_.empty() ? options_.start_timeout_ms : options_.timeout_ms)) {
        case Child::Next::kLine:
          answer(line);
          break;
        case Child::Next::kEnd:
          return ended();
        case Child::Next::kTimeout:
          return hung();
      }
    }
  }

 private:
  void answer(const std::string& line) {
    if (line.starts_with("begin\t")) {
      begun_ = line.substr(6);
      const auto found = position(begun_);
      if (found != left_.end()) sink_.begin(found->op, found->desc, found->row);
      return;
    }
    if (!line.starts_with("done\t")) return;  // a row that prints: not ours
    const auto json = nlohmann::ordered_json::parse(line.substr(5), nullptr, false);
    auto verdict = json.is_discarded() ? std::nullopt : verdict_from_json(json);
    if (!verdict) return;
    const auto found = position(key_of(verdict->op, verdict->desc, verdict->row));
    if (found == left_.end()) return;
    left_.erase(found);
    begun_.clear();
    sink_.done(std::move(*verdict));
  }

  void ended() {
    const std::string how = child_.stop();
    if (begun_.empty()) return fail_all("the child process ended by itself: " + how);
    fail(position(begun_), "crashed: " + how);
  }

  void hung() {
    child_.kill_now();
    child_.stop();
    if (begun_.empty())
      return fail_all(fmt::format("the child process was silent for {} ms", options_.start_timeout_ms));
    fail(position(begun_), fmt::format("hung: no result within {} ms", options_.timeout_ms));
  }

  std::vector<Verdict>::iterator position(const std::string& key) {
    return std::find_if(left_.begin(), left_.end(),
                        [&](const Verdict& row) { return key_of(row.op, row.desc, row.row) == key; });
  }

  void fail(std::vector<Verdict>::iterator row, const std::string& reason, bool untried = false) {
    if (row == left_.end()) return fail_all("the child process talks of rows it was not given");
    Verdict verdict = *row;
    verdict.untried = untried;
    left_.erase(row);
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    verdict.state = State::kFailed;
    verdict.reason = "contact: " + reason;
    verdict.ratios[static_cast<size_t>(ops::Evidence::kContact)] = kInfinity;
    verdict.worst = {kInfinity, ops::Evidence::kContact, verdict.reason, 0, 0, 0};
    sink_.done(std::move(verdict));
  }

  void fail_all(const std::string& reason) {
    while (!left_.empty()) fail(left_.begin(), reason, true);
  }

  std::vector<Verdict>& left_;
  const ContactOptions& options_;
  KernelSink& sink_;
  Child child_;
  std::string begun_;  // key of the row that runs
};

}  // namespace

void contact_rows(const std::vector<Verdict>& rows, const ContactOptions& options, KernelSink& sink) {
  std::jthread beside;
  if (options.beside) {
    beside = std::jthread([&] {
      constexpr int kNice = 10;  // rows are timed
      setpriority(PRIO_PROCESS, 0, kNice);
      options.beside();
    });
  }
  std::vector<Verdict> left = rows;
  while (!left.empty()) Round(left, options, sink).run();  // each round settles at least one row
}

ContactChild::ContactChild() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::string text;
  char chunk[4096];
  for (ssize_t count; (count = read(STDIN_FILENO, chunk, sizeof(chunk))) != 0;) {
    if (count > 0) text.append(chunk, static_cast<size_t>(count));
    if (count < 0 && errno != EINTR) break;
  }
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    wanted_.push_back(text.substr(begin, end - begin));
  }
  out_ = dup(STDOUT_FILENO);
  dup2(STDERR_FILENO, STDOUT_FILENO);  // whatever else prints does not disturb the answers
}

ContactChild::~ContactChild() {
  if (out_ >= 0) close(out_);
}

bool ContactChild::wanted(std::string_view op, const std::string& desc, std::string_view row) {
  return std::find(wanted_.begin(), wanted_.end(), key_of(op, desc, row)) != wanted_.end();
}

void ContactChild::begin(std::string_view op, const std::string& desc, std::string_view row) {
  answer("begin\t" + key_of(op, desc, row));
}

void ContactChild::done(Verdict verdict) { answer("done\t" + to_json(verdict).dump()); }

void ContactChild::answer(const std::string& line) const { write_all(out_, line + "\n"); }

}  // namespace assay::proof
