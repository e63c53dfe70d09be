#include "command_line.h"

#include <CLI/CLI.hpp>
#include <cmath>

#include "inputs.h"
#include "manual.h"
#include "text.h"

namespace kvscout::tool {
namespace {

// The bounds are in the error; --help stays short.
CLI::Validator between(std::int64_t low, std::int64_t high) {
  return CLI::Range(low, high).description("");
}

std::string braced(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "{" : ",") + word;
  return text + "}";
}

std::vector<OptionText> options_of(const CLI::App& app) {
  std::vector<OptionText> list;
  for (const CLI::Option* o : app.get_options()) {
    OptionText text{
        {}, o->get_type_size_max() == 0 ? "" : o->get_type_name(), o->get_description()};
    for (const std::string& name : o->get_snames()) text.names.push_back("-" + name);
    for (const std::string& name : o->get_lnames()) text.names.push_back("--" + name);
    list.push_back(text);
  }
  return list;
}

}  // namespace

void Verb::files(std::vector<std::string>& to, const char* help, bool required) {
  app_.add_option("FILE", to, help)->required(required)->type_name("");
}
void Verb::text(const char* flags, const char* kind, std::string& to, const char* help) {
  app_.add_option(flags, to, help)->type_name(kind);
}
void Verb::list(const char* flags, const char* kind, std::vector<std::string>& to,
                const char* help) {
  app_.add_option(flags, to, help)->type_name(kind)->allow_extra_args(false);
}
void Verb::choice(const char* flags, const std::vector<std::string>& words, std::string& to,
                  const char* help) {
  app_.add_option(flags, to, help)
      ->type_name(braced(words))
      ->check(CLI::IsMember(words).description(""));
}
void Verb::above_zero(const char* flags, double& to, const char* help) {
  const auto wrong = [](const std::string& text) {
    double x = 0;
    const bool right = CLI::detail::lexical_cast(text, x) && x > 0 && std::isfinite(x);
    return right ? std::string() : formatted("got {}, expected a number above 0", text);
  };
  app_.add_option(flags, to, help)->type_name("X")->check(CLI::Validator(wrong, ""));
}
void Verb::count(const char* flags, std::int64_t& to, std::int64_t low, std::int64_t high,
                 const char* help) {
  app_.add_option(flags, to, help)->type_name("N")->check(between(low, high));
}
void Verb::flag(const char* flags, bool& to, const char* help) { app_.add_flag(flags, to, help); }

void Verb::scalar(const char* flags, const char* kind, Given& given, const char* argument,
                  const char* help) {
  app_.add_option_function<std::string>(
          flags, [&given, argument](const std::string& text) { given[argument] = text; }, help)
      ->type_name(kind);
}
void Verb::scalar_flag(const char* flags, Given& given, const char* argument, const char* help) {
  app_.add_flag_callback(
      flags, [&given, argument] { given[argument] = "1"; }, help);
}

void Verb::use(std::vector<std::string>& to) {
  list("--use", "ARGUMENT=NAME", to, "read the argument from the tensor or metadata key NAME");
}
void Verb::backend(std::string& to, const char* help) { text("--backend", "BACKEND", to, help); }
void Verb::threads(int& to) {
  app_.add_option("--threads", to, "host threads (default: all)")
      ->type_name("N")
      ->check(between(0, 1 << 20));
}
void Verb::json(bool& to) { flag("--json", to, "report as one JSON object"); }

void Verb::run(const std::function<int()>& work) {
  app_.callback([work, &code = exit_code_] { code = work(); });
}

CommandLine::CommandLine(const char* name, const char* version, const char* what, const char* notes)
    : app_(std::make_unique<CLI::App>(what, name)) {
  app_->footer(notes);
  app_->set_version_flag("--version", version);
  app_->add_flag("--man", man_, "print the manual page (for man -l -)");
  app_->add_option("--completion", completion_, "print the completion of this shell")
      ->type_name("{bash}")
      ->check(CLI::IsMember({"bash"}).description(""));
  app_->require_subcommand(0, 1);
}
CommandLine::~CommandLine() = default;

Verb CommandLine::verb(const char* name, const char* what, const char* notes) {
  CLI::App* app = app_->add_subcommand(name, what);
  app->footer(notes);
  return Verb(*app, exit_code_);
}

ProgramText CommandLine::described() const {
  ProgramText program{app_->get_name(),   app_->version(),   app_->get_description(),
                      app_->get_footer(), options_of(*app_), {}};
  const CLI::App& app = *app_;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
    program.verbs.push_back(
        {verb->get_name(), verb->get_description(), verb->get_footer(), options_of(*verb)});
  return program;
}

int CommandLine::run(int argc, const char* const* argv) {
  try {
    app_->parse(argc, argv);
    if (man_)
      print_text(manual_page(described()));
    else if (!completion_.empty())
      print_text(bash_completion(described()));
    else if (app_->get_subcommands().empty())
      throw CLI::RequiredError("A subcommand");
    return exit_code_;
  } catch (const CLI::Success& request) {
    return app_->exit(request);  // --help, --version
  } catch (const CLI::ParseError& error) {
    throw Failure(kUsage, formatted("{} (see kvscout --help)", error.what()));
  }
}

}  // namespace kvscout::tool
