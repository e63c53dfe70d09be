// What a stream promises: graphs that are captured once and replayed over other lengths, page
// tables and a workspace full of junk; other streams; two streams at once; refusals that leave a
// capture usable. The answers are compared to the bit with a plain call on the same back end, which
// the conformance list has compared with the oracle.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "cases.h"
#include "memory.h"
#include "registry.h"

namespace kvscout::gpu {
namespace {

using namespace kvscout::cases;

std::vector<const Backend*> here() {
  std::vector<const Backend*> list;
  for (const Backend* b : all_backends())
    if (b->device == Device::cuda && b->runs_on(0, nullptr)) list.push_back(b);
  return list;
}

bool offers(const Backend& b, const Args& args) {
  switch (args.index()) {
    case 0:
      return b.quantize;
    case 1:
    case 2:
      return b.score;
    case 3:
      return b.select;
    case 4:
      return b.index;
    default:
      return b.append;
  }
}

// A call on the GPU with a workspace of its own.
struct Call {
  Call(Problem p, const Backend& b) : host(std::move(p)), there(host, memory) {
    options.backend = b.name;
    bytes = workspace_bytes(there.args, options);
    if (bytes) options.workspace = memory.allocate(bytes);
    options.workspace_bytes = bytes;
    fresh = host.buffers;
  }
  // Everything as before the first call, but for lengths; junk in the workspace.
  void reset(int junk) {
    for (std::size_t i = 0; i < fresh.size(); ++i)
      if (host.buffers[i].written)
        std::memcpy(host.buffers[i].bytes.data(), fresh[i].bytes.data(), fresh[i].bytes.size());
    there.upload();
    if (bytes) require(cudaMemset(options.workspace, junk, bytes), "junk");
    require(cudaDeviceSynchronize(), "reset");
  }
  void run_on(cudaStream_t stream) {
    options.stream = stream;
    cases::run(there.args, options);
  }
  std::vector<std::uint32_t> words() {
    there.download();
    return written_words(host);
  }

  GpuMemory memory;
  Problem host;
  Placed there;
  Options options;
  std::size_t bytes = 0;
  std::vector<Buffer> fresh;
};

// Other lengths within the same bounds, in host memory.
void shorten(Problem& p, int step) {
  ScoreFp4Args* a = std::get_if<ScoreFp4Args>(&p.args);
  if (auto* index = std::get_if<IndexArgs>(&p.args)) a = &index->score;
  if (!a || !a->seqused_k.defined) return;
  for (std::int64_t b = 0; b < a->seqused_k.size(0); ++b) {
    std::int32_t& length = element<std::int32_t>(a->seqused_k, b);
    length = length * (3 + static_cast<int>(b % 3)) / 6 + step;
    std::swap(element<std::int32_t>(a->page_table, b, 0),
              element<std::int32_t>(a->page_table, b, 1));
  }
}

ScoreSpec decode(std::vector<std::int32_t> queries, std::vector<std::int32_t> keys,
                 std::int64_t q_heads) {
  ScoreSpec s;
  s.q_heads = q_heads;
  s.q_lengths = std::move(queries);
  s.k_lengths = std::move(keys);
  return s;
}

std::vector<Problem> problems() {
  std::vector<Problem> list;
  const std::vector<std::int32_t> keys{9000, 700, 4096, 2000};
  list.push_back(build_score(decode({1, 1, 1, 1}, keys, 4)));
  list.push_back(build_score(decode({1, 4, 130, 1}, keys, 4)));
  for (const std::int64_t heads : {1, 4}) {
    IndexSpec index;
    index.score = decode({1, 1, 1, 1}, keys, heads);
    index.force_begin = 1, index.force_end = 2;
    list.push_back(build_index(index));
    index.score.max_k_tiles =
        2000;  // so many that the selection lets the next kernel start at once
    list.push_back(build_index(index));
  }
  IndexSpec index;
  index.score = decode({1, 40, 300, 2}, keys, 2);
  list.push_back(build_index(index));
  SelectSpec select;
  select.heads = 2, select.tiles = 700, select.tokens = 70;
  list.push_back(build_select(select));
  list.push_back(build_quantize({}));
  list.push_back(build_append({}));
  return list;
}

TEST(Streams, GraphIsReplayedWithOtherLengths) {
  for (const Backend* b : here()) {
    for (Problem& p : problems()) {
      if (!offers(*b, p.args)) continue;
      SCOPED_TRACE(std::string(b->name) + " " + operation_of(p.args));
      Call call(std::move(p), *b);
      Stream stream;
      cudaGraph_t graph;
      cudaGraphExec_t exec;
      require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
      call.run_on(stream);
      require(cudaStreamEndCapture(stream, &graph), "capture");
      require(cudaGraphInstantiate(&exec, graph, 0), "graph");
      for (int round = 0; round < 4; ++round) {
        if (round) shorten(call.host, 17 * round);
        call.reset(0xA5);
        call.run_on(nullptr);
        const auto expected = call.words();
        call.reset(round % 2 ? 0xFF : 0x3C);
        require(cudaGraphLaunch(exec, stream), "replay");
        stream.wait();
        EXPECT_EQ(call.words() == expected, true) << "replay " << round;
      }
      cudaGraphExecDestroy(exec);
      cudaGraphDestroy(graph);
    }
  }
}

// Two streams keep the GPU busy with the same calls on memory of their own.
TEST(Streams, TwoAtOnceDoNotDisturbEachOther) {
  for (const Backend* b : here()) {
    std::vector<Problem> first = problems(), second = problems();
    for (std::size_t i = 0; i < first.size(); ++i) {
      if (!offers(*b, first[i].args)) continue;
      SCOPED_TRACE(std::string(b->name) + " " + operation_of(first[i].args));
      Call one(std::move(first[i]), *b), two(std::move(second[i]), *b);
      shorten(two.host, 5);
      one.reset(1), two.reset(2);
      one.run_on(nullptr), two.run_on(nullptr);
      const auto expected_one = one.words(), expected_two = two.words();
      one.reset(3), two.reset(4);
      Stream s, t;
      for (int n = 0; n < 50; ++n) one.run_on(s), two.run_on(t);
      s.wait(), t.wait();
      EXPECT_EQ(one.words() == expected_one, true);
      EXPECT_EQ(two.words() == expected_two, true);
    }
  }
}

// A chain on one stream, with programmatic dependent launch between its kernels, where each call
// reads what the one before wrote: append into the cache, then score it.
TEST(Streams, AChainSeesWhatWasWrittenBefore) {
  for (const Backend* b : here()) {
    if (!b->score || !b->append) continue;
    SCOPED_TRACE(b->name);
    Call score(build_score(decode({1, 1}, {4000, 3000}, 4)), *b);
    const auto& s = std::get<ScoreFp4Args>(score.there.args);
    AppendSpec spec;
    spec.tokens = 64;
    spec.slots.clear();
    for (std::int64_t i = 0; i < 64; ++i) spec.slots.push_back(i * 37 % (s.k_fp4.size(0) * 128));
    Call append(build_append(spec), *b);
    auto& a = std::get<AppendArgs>(append.there.args);
    a.k_cache_fp4 = s.k_fp4, a.k_cache_scale = s.k_scale;
    score.reset(0);
    append.run_on(nullptr);
    require(cudaDeviceSynchronize(), "append");
    score.run_on(nullptr);
    const auto expected = score.words();
    Stream stream;
    for (int n = 0; n < 30; ++n) {
      score.there.upload();
      require(cudaDeviceSynchronize(), "upload");
      append.run_on(stream), score.run_on(stream);
      stream.wait();
      GpuMemory memory;  // words() brings the cache back, too: inputs are not compared
      EXPECT_EQ(score.words() == expected, true) << n;
      std::memcpy(score.host.buffers[0].bytes.data(), score.fresh[0].bytes.data(),
                  score.fresh[0].bytes.size());
      for (std::size_t i = 0; i < score.fresh.size(); ++i)
        std::memcpy(score.host.buffers[i].bytes.data(), score.fresh[i].bytes.data(),
                    score.fresh[i].bytes.size());
    }
  }
}

// Lengths on the device cannot be refused: queries beyond the bound are -inf, the others as ever.
TEST(Streams, QueriesBeyondTheBoundAreMinusInfinity) {
  for (const Backend* b : here()) {
    if (!b->score) continue;
    SCOPED_TRACE(b->name);
    Call whole(build_score(decode({3, 1, 40}, {900, 300, 700}, 2)), *b);
    Call bounded(build_score(decode({3, 1, 40}, {900, 300, 700}, 2)), *b);
    std::get<ScoreFp4Args>(bounded.there.args).max_seqlen_q = 2;
    whole.reset(0), bounded.reset(0);
    whole.run_on(nullptr), bounded.run_on(nullptr);
    whole.there.download(), bounded.there.download();
    const Tensor& expected = std::get<ScoreFp4Args>(whole.host.args).output;
    const Tensor& got = std::get<ScoreFp4Args>(bounded.host.args).output;
    for (std::int64_t h = 0; h < got.size(0); ++h)
      for (std::int64_t t = 0; t < got.size(1); ++t)
        for (std::int64_t n = 0; n < got.size(2); ++n) {
          const std::int64_t local = n < 3 ? n : n < 4 ? n - 3 : n - 4;
          const float want = local < 2 ? element<float>(expected, h, t, n) : -INFINITY;
          EXPECT_EQ(element<float>(got, h, t, n), want) << h << " " << t << " " << n;
        }
  }
}

TEST(Streams, CheckedModeIsRefusedUnderCaptureWhichStaysUsable) {
  for (const Backend* b : here()) {
    for (Problem& p : problems()) {
      if (!offers(*b, p.args)) continue;
      const bool reads_values = p.args.index() == 1 || p.args.index() == 4 || p.args.index() == 5;
      if (!reads_values) continue;
      SCOPED_TRACE(std::string(b->name) + " " + operation_of(p.args));
      Call call(std::move(p), *b);
      call.reset(0);
      call.run_on(nullptr);
      const auto expected = call.words();
      call.reset(1);
      Stream stream;
      require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
      call.options.check = true;
      EXPECT_THROW(call.run_on(stream), Error);
      call.options.check = false;
      call.run_on(stream);
      cudaGraph_t graph;
      cudaGraphExec_t exec;
      require(cudaStreamEndCapture(stream, &graph), "capture after the refusal");
      require(cudaGraphInstantiate(&exec, graph, 0), "graph");
      require(cudaGraphLaunch(exec, stream), "replay");
      stream.wait();
      EXPECT_EQ(call.words() == expected, true);
      cudaGraphExecDestroy(exec);
      cudaGraphDestroy(graph);
    }
  }
}

}  // namespace
}  // namespace kvscout::gpu
