// Timing on a GPU: medians of graph replays, and the ceilings of the machine in the same run.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

namespace bench {

inline void require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

using Work = std::function<void(cudaStream_t)>;

// `calls` of some work as one graph.
class Replay {
 public:
  Replay(const Work& work, int calls) : calls_(calls) {
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    work(stream_);  // loads code outside the capture
    require(cudaStreamSynchronize(stream_), "first call");
    cudaGraph_t graph;
    require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), "capture");
    for (int i = 0; i < calls; ++i) work(stream_);
    require(cudaStreamEndCapture(stream_, &graph), "capture");
    require(cudaGraphInstantiate(&exec_, graph, 0), "graph");
    cudaGraphDestroy(graph);
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
  }
  Replay(const Replay&) = delete;
  ~Replay() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaGraphExecDestroy(exec_);
    cudaStreamDestroy(stream_);
  }
  // Microseconds of one call in one replay.
  double operator()() const {
    cudaEventRecord(begin_, stream_);
    require(cudaGraphLaunch(exec_, stream_), "replay");
    cudaEventRecord(end_, stream_);
    require(cudaEventSynchronize(end_), "replay");
    float ms = 0;
    cudaEventElapsedTime(&ms, begin_, end_);
    return ms * 1e3 / calls_;
  }

 private:
  int calls_;
  cudaStream_t stream_;
  cudaGraphExec_t exec_;
  cudaEvent_t begin_, end_;
};

inline double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// Microseconds of one call: `calls` of them in one graph, median of 15 replays.
inline double microseconds(const Work& work, int calls = 20) {
  const Replay replay(work, calls);
  std::vector<double> times;
  for (int i = 0; i < 18; ++i) {
    const double t = replay();
    if (i >= 3) times.push_back(t);
  }
  return median(times);
}

// Contenders that are compared take turns: clocks and memory drift by more than they differ.
struct InTurn {
  std::vector<double> us;         // of each, median of the rounds
  std::vector<double> more;       // than the first one of the same round, median
  std::vector<double> low, high;  // quartiles of that
};
inline InTurn in_turn(const std::vector<Work>& works, int calls = 20, int rounds = 31) {
  std::vector<std::unique_ptr<Replay>> replays;
  for (const Work& w : works) replays.push_back(std::make_unique<Replay>(w, calls));
  std::vector<std::vector<double>> us(works.size()), more(works.size());
  for (int i = 0; i < rounds + 3; ++i)
    for (std::size_t w = 0; w < works.size(); ++w) {
      const double t = (*replays[w])();
      if (i < 3) continue;
      us[w].push_back(t);
      more[w].push_back(t - us[0].back());
    }
  InTurn result;
  for (std::size_t w = 0; w < works.size(); ++w) {
    result.us.push_back(median(us[w]));
    std::sort(more[w].begin(), more[w].end());
    result.more.push_back(more[w][more[w].size() / 2]);
    result.low.push_back(more[w][more[w].size() / 4]);
    result.high.push_back(more[w][more[w].size() * 3 / 4]);
  }
  return result;
}

__global__ void empty_kernel() {}

__global__ void touch_kernel(float* p) { *p += 1; }  // a neighbour that cannot be skipped

// A call between two small dependent kernels, less the kernels alone: nothing can overlap it for
// free.
inline double between_neighbours(const Work& work, float* scratch) {
  const double alone = microseconds([&](cudaStream_t s) {
    touch_kernel<<<1, 1, 0, s>>>(scratch);
    touch_kernel<<<1, 1, 0, s>>>(scratch);
  });
  return microseconds([&](cudaStream_t s) {
           touch_kernel<<<1, 1, 0, s>>>(scratch);
           work(s);
           touch_kernel<<<1, 1, 0, s>>>(scratch);
         }) -
         alone;
}

__global__ void copy_kernel(const uint4* from, uint4* to, std::int64_t n) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x * 4;
  for (std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x) * 4 + threadIdx.x;
       i < n; i += step) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (i + j * blockDim.x < n) v[j] = __ldcs(from + i + j * blockDim.x);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (i + j * blockDim.x < n) __stcs(to + i + j * blockDim.x, v[j]);
  }
}

__global__ void read_kernel(const uint4* from, std::int64_t n, std::uint32_t* sink) {
  std::uint32_t a = 0;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += step) {
    const uint4 v = __ldcs(from + i);
    a ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (a == 0x12345) *sink = a;
}

// TB/s of the machine, and the time of a node that does nothing.
struct Ceilings {
  double read = 0, copy = 0, empty_node = 0;
};

inline Ceilings ceilings(void* a, void* b, std::int64_t bytes, int sms) {
  Ceilings c;
  const std::int64_t n = bytes / 16;
  for (const int blocks : {4, 8, 16, 32}) {
    const auto grid = static_cast<unsigned>(sms * blocks);
    c.read =
        std::max(c.read, bytes / 1e6 /
                             microseconds(
                                 [&](cudaStream_t s) {
                                   read_kernel<<<grid, 256, 0, s>>>(static_cast<uint4*>(a), n,
                                                                    static_cast<std::uint32_t*>(b));
                                 },
                                 3));
    c.copy = std::max(c.copy, 2 * bytes / 1e6 /
                                  microseconds(
                                      [&](cudaStream_t s) {
                                        copy_kernel<<<grid, 256, 0, s>>>(static_cast<uint4*>(a),
                                                                         static_cast<uint4*>(b), n);
                                      },
                                      3));
  }
  const double driver =
      2 * bytes / 1e6 /
      microseconds(
          [&](cudaStream_t s) { cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice, s); }, 3);
  c.copy = std::max(c.copy, driver);
  c.empty_node = microseconds([&](cudaStream_t s) { empty_kernel<<<sms, 256, 0, s>>>(); });
  return c;
}

}  // namespace bench
