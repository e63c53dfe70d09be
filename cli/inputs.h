// Arguments of an operation from .safetensors files and the command line.
//
// Tensors carry the names of the operation's arguments; scalars lie in the metadata of a file or
// come from the command line, which wins. `--use ARGUMENT=NAME` reads an argument from another
// name.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "command_line.h"
#include "kvscout/kvscout.h"
#include "safetensors.h"

namespace kvscout::tool {

enum ExitCode {
  kOk = 0,         // done
  kMismatch = 1,   // a comparison or a check failed
  kUsage = 2,      // the command line is wrong
  kBadInput = 3,   // a file is malformed, or the operation refuses its arguments
  kNoBackend = 4,  // no back end for the call, or its device failed
  kSystem = 5,     // the output cannot be written, or memory is short
};

// Ends the program with a line on stderr.
struct Failure : std::runtime_error {
  Failure(ExitCode code, const std::string& message)
      : std::runtime_error(message), exit_code(code) {}
  ExitCode exit_code;
};

class Inputs {
 public:
  using Access = safetensors::File::Access;

  // `use`: entries ARGUMENT=NAME. `given`: scalars of the command line.
  Inputs(const std::vector<std::string>& paths, const std::vector<std::string>& use, Given given,
         Access access = Access::read_only);

  bool has(std::string_view argument) const;   // as a tensor
  Tensor tensor(std::string_view argument);    // aligned; Failure if it is not there
  Tensor optional(std::string_view argument);  // undefined if it is not there
  Tensor int32(std::string_view argument);     // likewise; 64-bit integers are narrowed
  Tensor named(const std::string& name);       // by its name in the file

  // Scalars; nothing if neither the command line nor a file has it.
  std::optional<std::string> text(std::string_view argument) const;
  std::optional<std::int64_t> integer(std::string_view argument) const;
  int small(std::string_view argument, int otherwise) const;  // an integer of 32 bits
  std::optional<double> number(std::string_view argument) const;
  bool boolean(std::string_view argument, bool otherwise) const;
  // For arguments that are a number or a tensor: whether it is a number. The command line wins over
  // a tensor, a tensor over metadata.
  bool is_scalar(std::string_view argument) const;
  bool has_either(std::string_view argument) const { return is_scalar(argument) || has(argument); }
  // A number, or a tensor of one f32. 1 if it is not there.
  GlobalScale scale(std::string_view argument);
  Reduce reduce() const;
  SfLayout layout() const;

 private:
  std::string name_of(std::string_view argument) const;
  void* own(std::size_t bytes);
  [[noreturn]] void bad_scalar(std::string_view argument, const std::string& expected) const;

  std::vector<safetensors::File> files_;
  std::map<std::string, const safetensors::View*, std::less<>> tensors_;
  Given metadata_, given_, names_;
  std::set<std::string, std::less<>> ambiguous_;  // metadata that two files give differently
  std::deque<std::vector<std::uint64_t>> owned_;  // copies that are aligned or narrowed
};

// A dense view of any rank up to 4.
Tensor dense(void* data, DType type, const std::vector<std::int64_t>& shape);

// What a tensor's type is called in a file.
const char* file_dtype(DType type);

}  // namespace kvscout::tool
