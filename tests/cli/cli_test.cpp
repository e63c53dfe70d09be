// The tool as a person uses it: golden files through every operation, chains of calls, and what it
// says about bad input (one line, the right exit code, no output file).
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "safetensors.h"

namespace {

namespace fs = std::filesystem;
namespace st = kvscout::safetensors;

std::string text_of(const fs::path& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

class Tool : public ::testing::Test {
 protected:
  Tool() {
    std::string pattern = (fs::temp_directory_path() / "kvscout-cli-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~Tool() override { fs::remove_all(folder_); }

  std::string file(const std::string& name) const { return (folder_ / name).string(); }
  static std::string golden(const std::string& name) {
    return GOLDEN_FOLDER "/" + name + ".safetensors";
  }

  // Runs the tool; the exit code. `out` and `err` hold what it printed.
  int run(const std::string& arguments, const std::string& before = "") {
    const std::string command =
        before + "'" TOOL_PATH "' " + arguments + " >" + file("out") + " 2>" + file("err");
    const int status = std::system(command.c_str());
    out = text_of(file("out"));
    err = text_of(file("err"));
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

  // An error: that exit code, one line on stderr that says `part`, nothing on stdout, no output
  // file.
  void expect_error(int code, const std::string& arguments, const std::string& part) {
    EXPECT_EQ(run(arguments), code) << arguments << "\n" << err;
    EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << arguments << "\n" << err;
    EXPECT_EQ(err.rfind("kvscout: ", 0), 0u) << err;
    EXPECT_NE(err.find(part), err.npos) << arguments << "\n" << err;
    EXPECT_EQ(out, "") << arguments;
    for (const auto& entry : fs::directory_iterator(folder_))
      EXPECT_EQ(entry.path().filename().string().find("result"), std::string::npos) << arguments;
  }

  fs::path folder_;
  std::string out, err;
};

TEST_F(Tool, ScoresOfGoldenFiles) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator(GOLDEN_FOLDER)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() != ".safetensors" || name.rfind("quantize", 0) == 0) continue;
    EXPECT_EQ(run("score " + entry.path().string() + " --compare expected"), 0) << name << "\n"
                                                                                << out << err;
    EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1) << out;
    ++files;
  }
  EXPECT_EQ(files, 15);
}

TEST_F(Tool, IdsOfGoldenFiles) {
  for (const char* name :
       {"index_full_hq1_k32", "index_offset_int_hq2_k8", "index_offset_tensor_hq4",
        "index_reduce_all_hq8_hkv2", "index_reduce_group_hq8_hkv2"}) {
    EXPECT_EQ(run("index " + golden(name) + " --compare expected_ids"), 0) << name << out << err;
    EXPECT_EQ(run("select " + golden(name) + " --use max_score=expected --compare expected_ids"), 0)
        << out << err;
  }
}

// Of the golden codes one differs, as their notes say: the reference drops the sign of -0.0.
TEST_F(Tool, CodesOfGoldenFiles) {
  for (const char* name : {"quantize_bf16", "quantize_fp16"}) {
    const std::string call =
        "quantize " + golden(name) + " --use a=x --use a_global_sf=global_scale ";
    EXPECT_EQ(run(call + "--compare scales=scale_128x4"), 0) << out << err;
    EXPECT_EQ(run(call + "--layout linear --compare scales=scale_linear"), 0) << out << err;
    EXPECT_EQ(run(call + "--compare codes=packed --json"), 1) << out << err;
    const auto report = nlohmann::json::parse(out);
    EXPECT_EQ(report["comparisons"][0]["differing"], 1) << out;
    EXPECT_EQ(report["comparisons"][0]["values"], 8320) << out;
  }
}

TEST_F(Tool, ComparisonsCanFail) {
  const std::string name = golden("flat_hq4_hkv1_causal");
  EXPECT_EQ(run("score " + name + " --compare expected --tolerance 1e-12"), 1);
  EXPECT_NE(out.find("!= expected"), out.npos) << out;
  EXPECT_EQ(run("score " + name + " --compare expected --causal false"), 1);
  EXPECT_EQ(run("score " + name + " --compare expected --q-offset 5"), 1);
  EXPECT_EQ(run("score " + name + " --compare expected --reduce-heads all"), 1);
  EXPECT_EQ(run("index " + golden("index_full_hq1_k32") +
                " --force-end 0 --topk 16 --compare expected_ids"),
            1);
}

TEST_F(Tool, OptionsWinOverMetadata) {
  const std::string name = golden("index_offset_int_hq2_k8");
  EXPECT_EQ(run("index " + name + " --q-offset -1 --topk 3 -o " + file("a")), 0) << err;
  const st::File result(file("a"));
  const st::View& ids = result.contents().tensors.at("ids");
  EXPECT_EQ(ids.shape, (std::vector<std::int64_t>{11, 2, 3}));
  std::int32_t first[3];  // the first query is at -1: it sees no key
  std::memcpy(first, ids.data, sizeof first);
  EXPECT_EQ(first[0], -1);
}

// An argument that is a number or a tensor: the command line wins over the tensor, the tensor over
// metadata. And numbers of another type are no equal ones.
TEST_F(Tool, NumbersAndTensorsOfOneName) {
  float scores[4 * 2] = {};
  std::int32_t valid[2] = {1, 4}, zeros[8] = {};
  const auto bytes = [](auto& x) { return reinterpret_cast<std::uint8_t*>(x); };
  st::Contents c;
  c.tensors["max_score"] = {"F32", {1, 4, 2}, bytes(scores), sizeof scores};
  c.tensors["num_valid_pages"] = {"I32", {2}, bytes(valid), sizeof valid};
  c.metadata = {{"num_valid_pages", "2"}, {"topk", "4"}};
  st::write(file("scores"), c);
  const auto chosen = [&](const std::string& more) {
    EXPECT_EQ(run("select " + file("scores") + more + " -o " + file("ids")), 0) << err;
    const st::File ids(file("ids"));
    std::vector<std::int32_t> values(8);
    std::memcpy(values.data(), ids.contents().tensors.at("ids").data, 32);
    return values;
  };
  EXPECT_EQ(chosen(""), (std::vector<std::int32_t>{0, -1, -1, -1, 0, 1, 2, 3}));
  EXPECT_EQ(chosen(" --num-valid-pages 3"), (std::vector<std::int32_t>{0, 1, 2, -1, 0, 1, 2, -1}));
  c.tensors.erase("num_valid_pages");
  c.tensors["expected"] = {"F32", {2, 1, 4}, bytes(zeros), sizeof zeros};
  st::write(file("scores"), c);
  EXPECT_EQ(chosen(""), (std::vector<std::int32_t>{0, 1, -1, -1, 0, 1, -1, -1}));
  EXPECT_EQ(run("select " + file("scores") + " --compare expected"), 1);
  EXPECT_NE(out.find("type i32 against f32"), out.npos) << out;
}

// quantize -> score -> select from files of three calls equals index.
TEST_F(Tool, CallsChain) {
  const std::string x = golden("quantize_bf16");
  // 130 rows of 128: as keys (130, 1, 128) and, the same, as queries.
  st::Contents data, lengths;
  const st::File source(x);
  data.tensors["a"] = source.contents().tensors.at("x");
  data.tensors["a"].shape = {130, 1, 128};
  data.tensors["a"].dtype = "BF16";
  st::write(file("a"), data);
  std::int64_t cu[2] = {0, 130};  // 64-bit lengths are narrowed
  lengths.tensors["cu_seqlens_q"] = {"I64", {2}, reinterpret_cast<std::uint8_t*>(cu), 16};
  lengths.tensors["cu_seqlens_k"] = lengths.tensors["cu_seqlens_q"];
  st::write(file("lengths"), lengths);
  ASSERT_EQ(run("quantize " + file("a") + " --as q -o " + file("q")), 0) << err;
  ASSERT_EQ(run("quantize " + file("a") + " --as k -o " + file("k")), 0) << err;
  const std::string problem = file("q") + " " + file("k") + " " + file("lengths");
  ASSERT_EQ(run("score " + problem + " -o " + file("s")), 0) << err;
  ASSERT_EQ(run("select " + file("s") + " --topk 1 --skip-masked -o " + file("i")), 0) << err;
  ASSERT_EQ(run("index " + problem + " " + file("i") + " --topk 1 --compare ids"), 0) << out << err;
  // The same rows as unquantised queries and keys: near, not equal.
  ASSERT_EQ(run("score " + file("a") + " " + file("lengths") +
                " --use q=a --use k=a --use x=y -o " + file("e")),
            0)
      << err;
  EXPECT_EQ(st::File(file("e")).contents().tensors.at("max_score").shape,
            (std::vector<std::int64_t>{1, 2, 130}));
}

TEST_F(Tool, AppendWritesTheCacheAndLeavesItsInput) {
  st::Contents c;
  std::vector<std::uint8_t> codes(2 * 8192, 0), scales(2 * 1024, 0), keys(2 * 256);
  for (std::size_t i = 0; i < keys.size(); i += 2) keys[i + 1] = 0x3F;  // bf16 0.5
  std::int64_t slots[2] = {130, -1};
  c.tensors["k_cache_fp4"] = {"U8", {2, 1, 128, 64}, codes.data(), codes.size()};
  c.tensors["k_cache_scale"] = {"U8", {2, 1024}, scales.data(), scales.size()};
  c.tensors["k"] = {"BF16", {2, 1, 128}, keys.data(), keys.size()};
  c.tensors["slot_mapping"] = {"I64", {2}, reinterpret_cast<std::uint8_t*>(slots), 16};
  st::write(file("cache"), c);
  expect_error(3, "append " + file("cache") + " -o " + file("result"), "global_scale: got nothing");
  c.metadata["global_scale"] = "448";
  st::write(file("cache"), c);
  const std::string before = text_of(file("cache"));
  ASSERT_EQ(run("append " + file("cache") + " -o " + file("after")), 0) << err;
  EXPECT_EQ(text_of(file("cache")), before);
  const st::File after(file("after"));
  const std::uint8_t* written = after.contents().tensors.at("k_cache_fp4").data;
  for (int i = 0; i < 2 * 8192; ++i) ASSERT_EQ(written[i] != 0, i / 64 == 130) << i;
  // In place: the same path.
  ASSERT_EQ(run("append " + file("cache") + " -o " + file("cache")), 0) << err;
  EXPECT_EQ(text_of(file("cache")), text_of(file("after")));
}

TEST_F(Tool, Json) {
  ASSERT_EQ(run("info --json --plan"), 0) << err;
  const auto info = nlohmann::json::parse(out);
  EXPECT_FALSE(info["version"].get<std::string>().empty());
  ASSERT_FALSE(info["backends"].empty());
  for (const auto& backend : info["backends"]) EXPECT_TRUE(backend.contains("available"));
  ASSERT_EQ(
      run("score " + golden("flat_hq8_hkv2_full") + " --json --compare expected -o " + file("a")),
      0)
      << err;
  const auto report = nlohmann::json::parse(out);
  EXPECT_EQ(report["results"][0]["shape"], (std::vector<int>{8, 6, 67}));
  EXPECT_EQ(report["comparisons"][0]["equal"], true);
  EXPECT_EQ(report["output"], file("a"));
}

// Of a terabyte of keys: a plan reads none of them.
TEST_F(Tool, PlansNeedNoMemoryForTheData) {
  ASSERT_EQ(run("info --plan --batch 64 --keys 16777216 --k-heads 16 --q-heads 64"), 0) << err;
  EXPECT_NE(out.find("\nplan: "), out.npos) << out;
  expect_error(2, "info --plan --batch 100000 --queries 100000", "10000000000 queries");
}

TEST_F(Tool, EveryBackendGivesTheExpectedScores) {
  ASSERT_EQ(run("info --json"), 0);
  const auto info = nlohmann::json::parse(out);
  int tried = 0;
  for (const auto& backend : info["backends"]) {
    if (!backend["available"]) continue;
    const std::string name = backend["name"];
    EXPECT_EQ(run("score " + golden("paged_hq8_hkv2_varlen_causal") +
                  " --threads 1 --compare expected --backend " + name),
              0)
        << name << out << err;
    ++tried;
  }
  EXPECT_GT(tried, 0);
}

TEST_F(Tool, HelpHasAnExampleForEveryVerb) {
  ASSERT_EQ(run("--help"), 0);
  EXPECT_NE(out.find("Exit codes"), out.npos);
  for (const char* verb : VERBS) {
    EXPECT_EQ(run(std::string(verb) + " --help"), 0) << verb;
    EXPECT_NE(out.find(std::string("Example: kvscout ") + verb), out.npos) << out;
  }
  ASSERT_EQ(run("--version"), 0);
}

// Every command of docs/tool.md that is marked as shell, in order, in a folder that looks like the
// repository.
TEST_F(Tool, CommandsOfTheDocumentationRun) {
  for (const char* name : {"tests", "examples"})
    fs::create_directory_symlink(fs::path(REPOSITORY) / name, folder_ / name);
  std::istringstream lines(text_of(REPOSITORY "/docs/tool.md"));
  bool shell = false;
  int commands = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("```", 0) == 0) {
      shell = line == "```sh";
    } else if (shell) {
      ASSERT_EQ(line.rfind("kvscout ", 0), 0u) << line;
      EXPECT_EQ(run(line.substr(8), "cd " + folder_.string() + "; "), 0) << line << "\n"
                                                                         << out << err;
      EXPECT_NE(out, "") << line;
      ++commands;
    }
  }
  EXPECT_GE(commands, 15);
}

TEST_F(Tool, ShowsScoresAndChosenBlocks) {
  const std::string name = golden("index_full_hq1_k32");  // 3 queries, 40 blocks, 32 chosen
  const std::string use = " --use max_score=expected --use ids=expected_ids ";
  ASSERT_EQ(run("show " + name + use + " --svg " + file("map.svg")), 0) << err;
  const auto times = [](const std::string& text, const std::string& part) {
    int n = 0;
    for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 4) << out;
  EXPECT_EQ(out.find('\033'), out.npos) << out;
  const std::string svg = text_of(file("map.svg"));
  EXPECT_EQ(svg.rfind("<svg ", 0), 0u);
  EXPECT_NE(svg.find("</svg>\n"), svg.npos);
  // Seen by the expected ids and scores themselves: a dot a chosen block, a cell a finite score.
  const st::File source(name);
  const st::View& ids = source.contents().tensors.at("expected_ids");
  const st::View& scores = source.contents().tensors.at("expected");
  int chosen = 0, finite = 0;
  for (std::size_t i = 0; i < ids.bytes; i += 4) {
    std::int32_t id;
    std::memcpy(&id, ids.data + i, 4);
    chosen += id >= 0;
  }
  for (std::size_t i = 0; i < scores.bytes; i += 4) {
    float score;
    std::memcpy(&score, scores.data + i, 4);
    finite += score > -1e30f;
  }
  EXPECT_EQ(times(out, "\u2022"), chosen + 1) << out;  // one in the legend
  EXPECT_EQ(times(svg, "stroke=\"#0f9\""), chosen);
  EXPECT_EQ(times(svg, "<rect x="), finite + chosen);  // cells, and frames inside them
  ASSERT_EQ(run("show " + name + use + "--json"), 0) << err;
  const auto report = nlohmann::json::parse(out);
  EXPECT_EQ(report["blocks"], 40);
  EXPECT_EQ(report["queries"], 3);
  EXPECT_LT(report["least"], report["greatest"]);

  ASSERT_EQ(run("show " + name + " --width 7 --height 2 --color always"), 0) << err;
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 3) << out;
  EXPECT_EQ(times(out, "\033[48;5;"), 14) << out;  // computed scores: every cell sees something
  expect_error(2, "show " + name + " --head 1", "1 heads");
  expect_error(2, "show " + name + " --color blue", "--color");
  expect_error(3, "show " + name + " --use ids=expected_ids --use max_score=num_valid_pages",
               "max_score");
  expect_error(5, "show " + name + " --svg /dev/full", "No space left");
  expect_error(5, "show " + name + " --svg " + file("no/such/result"), "No such file");
}

TEST_F(Tool, ChecksEveryBackendOfTheHost) {
  ASSERT_EQ(run("check --filter select --small"), 0) << out << err;
  const std::string last = out.substr(out.rfind('\n', out.size() - 2) + 1);
  EXPECT_EQ(last.rfind("check passed: ", 0), 0u) << out;
  ASSERT_EQ(run("check --filter select --small --json"), 0) << err;
  const auto report = nlohmann::json::parse(out);
  EXPECT_EQ(report["verdict"], "passed");
  std::vector<std::string> ran;
  int passed = 0;
  for (const auto& backend : report["backends"]) {
    EXPECT_EQ(backend["failed"], 0);
    passed += backend["passed"].get<int>();
    EXPECT_EQ(backend["passed"].get<int>() + backend["not_run"].get<int>(), report["cases"]);
    if (backend["passed"] != 0) ran.push_back(backend["name"]);
  }
  EXPECT_EQ(report["passed"], passed);
  for (const char* host : {"cpu", "reference"})
    EXPECT_EQ(std::count(ran.begin(), ran.end(), host), 1) << out;

  // One back end: the others are said to be not run.
  ASSERT_EQ(run("check --filter select --small --backend reference --threads 1"), 0) << err;
  EXPECT_NE(out.find("\nreference (any CPU; "), out.npos) << out;
  EXPECT_NE(out.find("\ncpu: not run\n"), out.npos) << out;
  ASSERT_EQ(run("check --list --filter select"), 0) << err;
  EXPECT_GT(std::count(out.begin(), out.end(), '\n'), 5) << out;
  expect_error(4, "check --backend nonesuch", "nonesuch");
  expect_error(2, "check --filter nonesuch", "nonesuch");
}

// Names of the options of a verb ("": of the tool), as --help lists them.
std::set<std::string> options_in(const std::string& help) {
  std::set<std::string> names;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("  -", 0) != 0) continue;
    std::istringstream listed(line.substr(2, line.find(' ', 2) - 2));  // "-o,--output"
    for (std::string name; std::getline(listed, name, ',');) names.insert(name);
  }
  return names;
}

// As roff writes it.
std::string escaped(const std::string& name) {
  std::string text;
  for (const char c : name) text += c == '-' ? std::string("\\-") : std::string(1, c);
  return text;
}

TEST_F(Tool, CompletionKnowsEveryVerbAndOption) {
  ASSERT_EQ(run("--completion bash"), 0) << err;
  std::ofstream(file("completion")) << out;
  // What bash offers behind these words.
  const auto offered = [&](const std::string& words, int at) {
    std::ofstream(file("ask")) << "set -eu; . " << file("completion") << "; COMP_WORDS=(" << words
                               << "); COMP_CWORD=" << at
                               << "; _kvscout; printf '%s\\n' \"${COMPREPLY[@]}\"\n";
    EXPECT_EQ(std::system(("bash " + file("ask") + " >" + file("offered")).c_str()), 0) << words;
    std::istringstream lines(text_of(file("offered")));
    std::set<std::string> set;
    for (std::string word; std::getline(lines, word);) set.insert(word);
    return set;
  };
  EXPECT_EQ(offered("kvscout \"\"", 1), (std::set<std::string> VERBS));
  ASSERT_EQ(run("--help"), 0);
  EXPECT_EQ(offered("kvscout -", 1), options_in(out));
  for (const char* verb : VERBS) {
    ASSERT_EQ(run(std::string(verb) + " --help"), 0);
    const auto names = options_in(out);
    EXPECT_GE(names.size(), 5u) << out;
    EXPECT_EQ(offered("kvscout " + std::string(verb) + " -", 2), names) << verb;
  }
  EXPECT_EQ(offered("kvscout show --color a", 3), (std::set<std::string>{"always", "auto"}));
  EXPECT_EQ(offered("kvscout score --backend = ref", 4), (std::set<std::string>{"reference"}));
  std::ofstream(file("two words")) << "";
  EXPECT_EQ(offered("kvscout score " + file("two"), 2), (std::set<std::string>{file("two words")}));
}

TEST_F(Tool, ManualNamesEveryVerbAndOption) {
  ASSERT_EQ(run("--man"), 0) << err;
  const std::string page = out;
  for (const char* verb : VERBS) {
    const std::size_t begin = page.find(std::string(".SS kvscout ") + verb + "\n");
    ASSERT_NE(begin, page.npos) << verb;
    const std::string section = page.substr(begin, page.find("\n.S", begin) - begin);
    ASSERT_EQ(run(std::string(verb) + " --help"), 0);
    for (const std::string& name : options_in(out)) {
      EXPECT_NE(section.find("\\fB" + escaped(name) + "\\fR"), section.npos) << verb << " " << name;
    }
    EXPECT_NE(section.find(std::string("Example: kvscout ") + verb), section.npos) << verb;
  }
  EXPECT_NE(page.find("Exit codes"), page.npos);
}

TEST_F(Tool, ManReadsTheManual) {
  if (std::system("man --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no man here";
  ASSERT_EQ(run("--man"), 0);
  std::ofstream(file("kvscout.1")) << out;
  const std::string man =
      "LC_ALL=C.UTF-8 MAN_KEEP_STDERR=1 MANWIDTH=200 man --warnings -l " + file("kvscout.1");
  ASSERT_EQ(std::system((man + " >" + file("page") + " 2>" + file("warnings")).c_str()), 0);
  EXPECT_EQ(text_of(file("warnings")), "");
  const std::string page = text_of(file("page"));
  EXPECT_NE(page.find("kvscout bench"), page.npos) << page;
  EXPECT_NE(page.find("--force-begin N"), page.npos) << page;
}

TEST_F(Tool, BenchTimesEveryOperation) {
  const std::string shape = "bench --keys 300 --queries 2 --rounds 1 --threads 1 ";
  for (const char* backend : {"cpu", "reference"}) {
    ASSERT_EQ(run(shape + "--json --backend " + backend), 0) << err;
    const auto report = nlohmann::json::parse(out);
    EXPECT_EQ(report["backend"], backend);
    std::vector<std::string> timed;
    for (const auto& time : report["times"]) {
      timed.push_back(time["what"]);
      EXPECT_GT(time["seconds"], 0.0) << out;
      EXPECT_GT(time["bytes"], 0) << out;
    }
    EXPECT_EQ(timed, (std::vector<std::string>{"read of the keys", "score", "select", "index",
                                               "quantize", "append"}));
    EXPECT_EQ(report["times"][0]["of_ceiling"], 1.0);
  }
  ASSERT_EQ(run(shape), 0) << err;
  EXPECT_NE(out.find("best of 1;"), out.npos) << out;
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 9) << out;
  expect_error(4, "bench --backend nonesuch", "nonesuch");
  expect_error(2, "bench --rounds 0", "--rounds");
}

TEST_F(Tool, WrongCommandLinesAreOneLine) {
  const std::string name = golden("flat_hq4_hkv1_causal"), to = " -o " + file("result");
  expect_error(2, "", "subcommand");
  expect_error(2, "scrore", "");
  expect_error(2, "score", "FILE");
  expect_error(2, "score " + name + to + " --colour", "--colour");
  expect_error(2, "score " + name + to + " --q-offset x", "q_offset");
  expect_error(2, "score " + name + to + " --q-offset 1.5", "q_offset");
  expect_error(2, "score " + name + to + " --q-offset 99999999999999999999", "q_offset");
  expect_error(2, "score " + name + to + " --reduce-heads some", "kv_group");
  expect_error(2, "score " + name + to + " --causal maybe", "causal");
  expect_error(2, "score " + name + to + " --threads -1", "--threads");
  expect_error(2, "score " + name + to + " --use q_fp4", "ARGUMENT=NAME");
  expect_error(2, "index " + name + to + " --topk 4294967312", "topk");
  expect_error(2, "quantize " + name + to + " --as v", "--as");
  expect_error(2, "score " + name + " --compare ids=expected", "no result 'ids'");
}

TEST_F(Tool, RefusedArgumentsAreOneLine) {
  const std::string name = golden("flat_hq4_hkv1_causal"), to = " -o " + file("result");
  expect_error(3, "score " + name + to + " --max-seqlen-q 3", "max_seqlen_q");
  for (const char* bad : {"0", "-1", "nan", "inf", "x"})
    expect_error(2, "score " + name + to + " --tolerance " + bad, "expected a number above 0");
  expect_error(3, "score " + name + to + " --max-k-tiles -1", "max_k_tiles: got -1");
  expect_error(3, "score " + name + to + " --max-k-tiles 9223372036854775807", "max_score");
  expect_error(3, "score " + name + to + " --use q_fp4=k_scale", "q_fp4");
  expect_error(3, "score " + name + to + " --use k_scale=q_scale", "k_scale");
  expect_error(3, "score " + name + to + " --use cu_seqlens_q=expected", "cu_seqlens_q");
  expect_error(3, "score " + name + to + " --k-global-scale 0", "k_global_scale");
  expect_error(3, "score " + name + to + " --compare absent", "absent");
  expect_error(3, "score " + name + " " + name + to, "more than one file");
  expect_error(3, "index " + name + to + " --topk 65", "topk");
  expect_error(3, "index " + name + to + " --topk 4 --force-begin 3 --force-end 2", "force");
  expect_error(3, "select " + name + to, "max_score");
  expect_error(3, "quantize " + golden("flat_hq8_hkv2_full") + to + " --use a=q_fp4", "a: ");
  expect_error(4, "score " + name + to + " --backend nonesuch", "nonesuch");
}

TEST_F(Tool, MalformedFilesAreOneLine) {
  const std::string whole = text_of(golden("flat_short_kv_hq4_hkv4_causal")),
                    to = " -o " + file("result");
  const auto damaged = [&](const std::string& bytes) {
    std::ofstream(file("bad"), std::ios::binary) << bytes;
    return "score " + file("bad") + to;
  };
  expect_error(3, "score " + file("absent") + to, "No such file");
  expect_error(3, "score " + folder_.string() + to, "");
  expect_error(3, damaged(""), "8");
  expect_error(3, damaged(whole.substr(0, 100)), "header");
  expect_error(3, damaged(whole.substr(0, whole.size() - 1)), "data_offsets");
  expect_error(3, damaged(whole + "x"), "after the last tensor");
  expect_error(3, damaged(std::string(7, '\0') + "\x80" + whole.substr(8)), "header");
  expect_error(3, damaged(std::string(8, '\xFF') + whole.substr(8)), "header");
  std::string other = whole;
  other.replace(other.find("\"I32\""), 5,
                "\"I\xff"
                "2\"");
  expect_error(3, damaged(other), "JSON");
}

TEST_F(Tool, OutputThatCannotBeWrittenIsOneLine) {
  const std::string name = golden("flat_hq4_hkv1_causal");
  expect_error(5, "score " + name + " -o /dev/full", "No space left");
  expect_error(5, "score " + name + " -o " + file("no/such/result"), "No such file");
  expect_error(5, "score " + name + " -o " + folder_.string(), "directory");
  // A limit of 8 blocks of 512 bytes on the size of files stands for a disk that fills up on the
  // way.
  EXPECT_EQ(run("score " + name + " -o " + file("result"), "ulimit -f 8; "), 5) << err;
  EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const std::string left = entry.path().filename().string();
    EXPECT_TRUE(left == "out" || left == "err") << left;
  }
}

}  // namespace
