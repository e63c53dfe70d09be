// The command line as the verbs describe it: parsed by CLI11, which command_line.cpp alone includes
// (it took 13 seconds a file under the sanitizers); and the same description as plain data, from
// which manual.h makes the manual page and the completion of a shell.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvscout::tool {

using Given = std::map<std::string, std::string, std::less<>>;  // argument -> text

// ---- as data -----------------------------------------------------------------------------------

struct OptionText {
  std::vector<std::string> names;  // "-o", "--output"; none: the files of the verb
  // Of the value, as --help shows it: FILE, BACKEND, or words as "{a,b}"; empty for a flag.
  std::string kind;
  std::string help;
};

struct VerbText {
  std::string name, what, notes;  // notes: its arguments, and an example
  std::vector<OptionText> options;
};

struct ProgramText {
  std::string name, version, what, notes;
  std::vector<OptionText> options;
  std::vector<VerbText> verbs;
};

// ---- as it is told -----------------------------------------------------------------------------

// One verb, whose options are told one by one. `flags`: "-o,--output".
class Verb {
 public:
  void files(std::vector<std::string>& to, const char* help, bool required = true);
  void text(const char* flags, const char* kind, std::string& to, const char* help);
  void list(const char* flags, const char* kind, std::vector<std::string>& to, const char* help);
  void choice(const char* flags, const std::vector<std::string>& words, std::string& to,
              const char* help);
  void above_zero(const char* flags, double& to, const char* help);
  void count(const char* flags, std::int64_t& to, std::int64_t low, std::int64_t high,
             const char* help);
  void flag(const char* flags, bool& to, const char* help);
  // Text that becomes the scalar `argument` of an operation, which judges it.
  void scalar(const char* flags, const char* kind, Given& given, const char* argument,
              const char* help);
  void scalar_flag(const char* flags, Given& given, const char* argument, const char* help);

  // What most verbs take.
  void use(std::vector<std::string>& to);
  void backend(
      std::string& to,
      const char* help = "a name that 'kvscout info' lists (default: the first that fits)");
  void threads(int& to);
  void json(bool& to);

  void run(const std::function<int()>& work);  // its value is the exit code

 private:
  friend class CommandLine;
  Verb(CLI::App& app, int& exit_code) : app_(app), exit_code_(exit_code) {}
  CLI::App& app_;
  int& exit_code_;
};

class CommandLine {
 public:
  CommandLine(const char* name, const char* version, const char* what, const char* notes);
  ~CommandLine();

  Verb verb(const char* name, const char* what, const char* notes);
  ProgramText described() const;

  // Parses, and runs the verb. Throws Failure(kUsage), and what the verb throws.
  int run(int argc, const char* const* argv);

 private:
  std::unique_ptr<CLI::App> app_;
  int exit_code_ = 0;
  bool man_ = false;
  std::string completion_;
};

}  // namespace kvscout::tool
