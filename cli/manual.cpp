#include "manual.h"

#include "kvscout/kvscout.h"
#include "text.h"

namespace kvscout::tool {
namespace {

// ---- man ---------------------------------------------------------------------------------------

// Text that roff takes as it is: no escapes, no requests.
std::string roff(const std::string& text) {
  std::string out;
  bool line_starts = true;
  for (const char c : text) {
    if (line_starts && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
    line_starts = c == '\n';
  }
  return out;
}

// Lines that stay lines.
std::string kept(const std::string& lines) { return ".nf\n" + roff(lines) + "\n.fi\n"; }

std::string names_of(const OptionText& o) {
  std::string text;
  for (const std::string& name : o.names)
    text += formatted("{}\\fB{}\\fR", text.empty() ? "" : ", ", roff(name));
  if (o.names.empty()) text = "\\fIFILE\\fR";
  if (!o.kind.empty()) text += formatted(" \\fI{}\\fR", roff(o.kind));
  return text;
}

std::string options_of(const std::vector<OptionText>& options) {
  std::string text;
  for (const OptionText& o : options) text += formatted(".TP\n{}\n{}\n", names_of(o), roff(o.help));
  return text;
}

bool takes_files(const VerbText& verb) {
  for (const OptionText& o : verb.options)
    if (o.names.empty()) return true;
  return false;
}

// ---- bash --------------------------------------------------------------------------------------

// How compgen finds the values of an option; empty: any text.
std::string values_of(const OptionText& o) {
  if (o.kind == "FILE") return "-f";
  std::string words;
  if (o.kind == "BACKEND")
    for (const BackendInfo& b : backends()) words += (words.empty() ? "" : " ") + b.name;
  if (o.kind.starts_with('{'))
    for (const char c : o.kind.substr(1, o.kind.size() - 2)) words += c == ',' ? ' ' : c;
  return words.empty() ? "" : formatted("-W '{}'", words);
}

// The values of the options that have one, as cases of the word before; and all names.
std::string values_and_names(const std::vector<OptionText>& options, const std::string& others) {
  std::string cases, names;
  for (const OptionText& o : options) {
    std::string pattern;
    for (const std::string& name : o.names) {
      pattern += (pattern.empty() ? "" : "|") + name;
      names += (names.empty() ? "" : " ") + name;
    }
    if (o.kind.empty() || o.names.empty()) continue;
    const std::string values = values_of(o);
    cases += formatted(
        "        {}) {} return ;;\n", pattern,
        values.empty() ? ""
                       : formatted("mapfile -t COMPREPLY < <(compgen {} -- \"$word\");", values));
  }
  return formatted("      case $before in\n{}      esac\n      names='{}' others={}\n", cases,
                   names, others);
}

}  // namespace

std::string manual_page(const ProgramText& p) {
  std::string text = formatted(
      ".TH KVSCOUT 1 \"\" \"kvscout {}\" \"User Commands\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n"
      "\\fB{}\\fR \\fIVERB\\fR [\\fIOPTION\\fR]... [\\fIFILE\\fR]...\n",
      p.version, p.name, roff(p.what), p.name);
  text += ".SH OPTIONS\n" + options_of(p.options) + ".SH VERBS\n";
  for (const VerbText& verb : p.verbs) {
    text += formatted(".SS {} {}\n{}\n", p.name, roff(verb.name), roff(verb.what) + ".");
    if (takes_files(verb))
      text += ".br\n" + formatted("\\fB{} {}\\fR [\\fIOPTION\\fR]... [\\fIFILE\\fR]...\n", p.name,
                                  roff(verb.name));
    text += ".PP\n" + kept(verb.notes) + options_of(verb.options);
  }
  return text + ".SH NOTES\n" + kept(p.notes);
}

std::string bash_completion(const ProgramText& p) {
  std::string verbs, patterns, cases;
  for (const VerbText& verb : p.verbs) {
    verbs += (verbs.empty() ? "" : " ") + verb.name;
    patterns += (patterns.empty() ? "" : "|") + verb.name;
    cases += formatted("    {})\n{}      ;;\n", verb.name,
                       values_and_names(verb.options, takes_files(verb) ? "-f" : "''"));
  }
  // In "--name=value" bash makes three words of one.
  return formatted(
      R"(# Completion of {0} {1} for bash; made by `{0} --completion bash`.
_{0}() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} verb= names others i
  if [[ $word == = ]]; then word=; fi
  if [[ $before == = ]]; then before=${{COMP_WORDS[COMP_CWORD-2]}}; fi
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case ${{COMP_WORDS[i]}} in {2}) verb=${{COMP_WORDS[i]}}; break ;; esac
  done
  COMPREPLY=()
  case $verb in
{3}    *)
{4}      ;;
  esac
  if [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$names" -- "$word")
  elif [[ $others == -f ]]; then
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  else
    mapfile -t COMPREPLY < <(compgen -W "$others" -- "$word")
  fi
}}
complete -o filenames -F _{0} {0}
)",
      p.name, p.version, patterns, cases, values_and_names(p.options, "'" + verbs + "'"));
}

}  // namespace kvscout::tool
