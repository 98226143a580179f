// The process that executes NEFFs for a core, and the lines that are spoken with it (executor.py).
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "tests/standin_sdk/libnrt/standin.h"

extern char** environ;

namespace standin {
namespace {

const char* required(const char* variable) {
  const char* value = getenv(variable);
  if (!value || !*value) throw std::string("the environment variable ") + variable + " is not set: source the stand-in SDK's env.sh";
  return value;
}

Variable read_variable(std::istringstream& words) {
  Variable variable;
  int dtype = 0, dimensions = 0;
  words >> variable.name >> dtype >> variable.bytes >> dimensions;
  variable.dtype = static_cast<nrt_dtype_t>(dtype);
  variable.shape.resize(static_cast<size_t>(dimensions));
  for (auto& size : variable.shape) words >> size;
  return variable;
}

}  // namespace

Executor::Executor(int core) {
  const std::string python = required("STANDIN_SDK_PYTHON"), script = required("STANDIN_SDK_EXECUTOR");
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) throw std::string("no socket for the executor");
  const std::string socket = std::to_string(pair[1]), parent = std::to_string(getpid()), number = std::to_string(core);
  std::vector<const char*> arguments = {python.c_str(), "-s", script.c_str(), socket.c_str(), parent.c_str(), number.c_str(), nullptr};
  // Everything is ready before the fork: the child of a process with threads may do little else than exec.
  child_ = fork();
  if (child_ == 0) {
    close(pair[0]);
    execve(python.c_str(), const_cast<char* const*>(arguments.data()), environ);
    _exit(127);
  }
  close(pair[1]);
  socket_ = pair[0];
  if (child_ < 0) throw std::string("no process for the executor");
}

Executor::~Executor() {
  close(socket_);  // the executor ends when nobody speaks to it
  int status;
  waitpid(child_, &status, 0);
}

std::string Executor::ask(const std::string& line) {
  std::lock_guard lock(mutex_);
  const std::string message = line + "\n";
  for (size_t sent = 0; sent < message.size();) {
    const ssize_t n = send(socket_, message.data() + sent, message.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) throw std::string("the executor process has ended");
    sent += static_cast<size_t>(n);
  }
  while (true) {
    const auto end = buffer_.find('\n');
    if (end != std::string::npos) {
      std::string answer = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      if (answer.compare(0, 2, "ok") == 0) return answer.substr(2);
      throw answer;
    }
    char piece[4096];
    const ssize_t n = recv(socket_, piece, sizeof piece, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw std::string("the executor process has ended");
    buffer_.append(piece, static_cast<size_t>(n));
  }
}

void Executor::load(int id, int fd, size_t bytes, std::vector<Variable>* inputs, std::vector<Variable>* outputs) {
  std::istringstream words(ask("load " + std::to_string(id) + " " + std::to_string(fd) + ":0:" + std::to_string(bytes)));
  for (auto* list : {inputs, outputs}) {
    size_t count = 0;
    words >> count;
    for (size_t i = 0; i < count; ++i) list->push_back(read_variable(words));
  }
}

void Executor::unload(int id) { ask("unload " + std::to_string(id)); }

void Executor::forget(int fd) {
  try {
    ask("forget " + std::to_string(fd));
  } catch (const std::string&) {
    // It has ended, and its mappings with it.
  }
}

bool Executor::execute(int id, const std::vector<std::string>& inputs, const std::vector<std::string>& outputs, bool look_for_nan) {
  std::string line = "execute " + std::to_string(id) + (look_for_nan ? " nan" : " -");
  for (const auto& place : inputs) line += " " + place;
  line += " ->";
  for (const auto& place : outputs) line += " " + place;
  return ask(line) == " nan";
}

}  // namespace standin
