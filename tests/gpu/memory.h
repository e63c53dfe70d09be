// GPU memory for the case list: one allocation a buffer, so that memcheck sees every end.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "cases/problem.h"

namespace kvscout::gpu {

inline void require(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    throw Error(Error::device_failure, std::string(what) + ": " + cudaGetErrorString(error));
}

class GpuMemory : public cases::Memory {
 public:
  ~GpuMemory() override {
    for (void* p : blocks_) cudaFree(p);
  }
  Device device() const override { return {Device::cuda, 0}; }
  void* allocate(std::size_t bytes) override {
    void* p = nullptr;
    require(cudaMalloc(&p, bytes ? bytes : 1), "cudaMalloc");
    blocks_.push_back(p);
    return p;
  }
  void write(void* to, const void* from_host, std::size_t bytes) override {
    require(cudaMemcpy(to, from_host, bytes, cudaMemcpyHostToDevice), "copy to the GPU");
  }
  void read(void* to_host, const void* from, std::size_t bytes) override {
    require(cudaDeviceSynchronize(), "kernels");
    require(cudaMemcpy(to_host, from, bytes, cudaMemcpyDeviceToHost), "copy from the GPU");
  }

 private:
  std::vector<void*> blocks_;
};

class Stream {
 public:
  Stream() { require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void wait() const { require(cudaStreamSynchronize(stream_), "stream"); }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace kvscout::gpu
