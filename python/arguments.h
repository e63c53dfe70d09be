// Arguments of a Python call as the plain C ABI of tvm-ffi hands them over: a list of tagged
// values, read in order, each under its name.
//
// Tensors arrive as DLPack descriptions (torch, numpy, JAX, CuPy); nothing is copied and nothing is
// owned. Lengths that need another type or device first are not an error here: their bit is set in
// `repairs`, and Python, which may allocate, converts them and calls again. So the common case
// costs no check in Python.
#pragma once

#include <tvm/ffi/c_api.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "kvscout/kvscout.h"

namespace kvscout::python {

class Arguments {
 public:
  Arguments(const char* operation, const TVMFFIAny* values, std::int32_t count)
      : operation_(operation), values_(values), count_(count) {}

  // Bits of the arguments (counted from 0) that Python must convert before it calls again.
  std::uint64_t repairs = 0;

  bool is_none() const { return next_ >= count_ || values_[next_].type_index == kTVMFFINone; }
  void skip() { ++next_; }

  // A tensor as it is. `flatten`: more dimensions than the library's views hold become one.
  Tensor tensor(const char* name, bool flatten = false, const char* types = kAnyType) {
    const int at = next_++;
    if (at >= count_ || values_[at].type_index == kTVMFFINone) return {};
    return view(name, values_[at], flatten, types);
  }

  // Memory to work in: nothing is written beyond its bytes, nor between them.
  Tensor workspace(Device data) {
    const Tensor t = tensor("workspace", true, "uint8");
    if (t.defined && !(t.device == data))
      fail("workspace", "memory on another device", "memory beside the data");
    if (!t.is_dense()) fail("workspace", "a strided array", "contiguous bytes");
    return t;
  }

  // Lengths, page tables, slots: `type` on the device of the data, else a repair.
  Tensor lengths(const char* name, DType type, Device data) {
    const int at = next_;
    Tensor t = tensor(name, false, type == DType::i64 ? "int64" : "int32 or int64");
    if (!t.defined) return t;
    const bool is_integer = t.dtype == DType::i32 || t.dtype == DType::i64;
    const bool gaps = t.rank == 1 && !t.is_dense();
    if ((is_integer && (t.dtype != type || gaps)) ||
        (t.device.type == Device::cpu && !(t.device == data)))
      repairs |= std::uint64_t{1} << at;
    return t;
  }

  // A number, or a tensor of one float on the device of the data. A host tensor beside device data
  // is read here: that is a number, too.
  GlobalScale scale(const char* name, Device data) {
    const int at = next_;
    GlobalScale s;
    if (at < count_ && is_tensor(values_[at])) {
      const Tensor t = tensor(name, true, "a number or one float32");
      if (t.dtype != DType::f32 || t.count() != 1)
        fail(name, std::to_string(t.count()) + " elements of type " + name_of(t.dtype),
             "a number or one float32");
      if (t.device == data)
        s.pointer = static_cast<const float*>(t.data);
      else if (t.device.type == Device::cpu)
        std::memcpy(&s.value, t.data, sizeof(float));
      else
        fail(name, "a tensor on another device", "a number or one float32 beside the data");
      return s;
    }
    s.value = static_cast<float>(number(name));
    return s;
  }

  double number(const char* name) {
    const TVMFFIAny& v = values_[take(name, "a number")];
    if (v.type_index == kTVMFFIFloat) return v.v_float64;
    if (v.type_index == kTVMFFIInt) return static_cast<double>(v.v_int64);
    fail(name, kind(v), "a number");
  }

  std::int64_t integer(const char* name) {
    const TVMFFIAny& v = values_[take(name, "an integer")];
    if (v.type_index == kTVMFFIInt || v.type_index == kTVMFFIBool) return v.v_int64;
    fail(name, kind(v), "an integer");
  }
  std::int64_t integer_or(const char* name, std::int64_t otherwise) {
    if (!is_none()) return integer(name);
    skip();
    return otherwise;
  }
  int small(const char* name) {  // kept within int, so that a huge number stays an illegal one
    const std::int64_t n = integer(name);
    constexpr std::int64_t kMost = 1 << 30;
    return static_cast<int>(n < -kMost ? -kMost : n > kMost ? kMost : n);
  }
  bool flag(const char* name) { return integer(name) != 0; }

  bool next_is_tensor() const { return next_ < count_ && is_tensor(values_[next_]); }

  [[noreturn]] void fail(const char* name, const std::string& got,
                         const std::string& expected) const {
    throw Error(Error::invalid_argument,
                std::string(operation_) + ": " + name + ": got " + got + ", expected " + expected);
  }

 private:
  static bool is_tensor(const TVMFFIAny& v) {
    return v.type_index == kTVMFFITensor || v.type_index == kTVMFFIDLTensorPtr;
  }

  static std::string kind(const TVMFFIAny& v) {
    switch (v.type_index) {
      case kTVMFFINone:
        return "nothing";
      case kTVMFFIBool:
        return "a bool";
      case kTVMFFIInt:
        return "an integer";
      case kTVMFFIFloat:
        return "a float";
      case kTVMFFIBigInt:
        return "an integer beyond 64 bits";
      case kTVMFFISmallStr:
      case kTVMFFIStr:
        return "a string";
      case kTVMFFITensor:
      case kTVMFFIDLTensorPtr:
        return "a tensor";
      case kTVMFFIArray:
        return "a list or tuple";
      default:
        return "an object that is no array";
    }
  }

  int take(const char* name, const char* expected) {
    if (next_ >= count_) fail(name, "nothing", expected);
    return next_++;
  }

  // The types differ from argument to argument; the library tells which, of those that it knows.
  static constexpr const char* kAnyType = "a type that help() of the operation names";

  static std::string type_name(const DLDataType& d) {
    const std::string bits = std::to_string(d.bits * d.lanes);
    switch (d.code) {
      case kDLInt:
        return "int" + bits;
      case kDLUInt:
        return "uint" + bits;
      case kDLFloat:
        return "float" + bits;
      case kDLBool:
        return "bool";
      case kDLComplex:
        return "complex" + bits;
      default:
        return "another " + bits + "-bit type's";
    }
  }

  DType dtype(const char* name, const DLDataType& d, const char* types) const {
    const int code = d.code, bits = d.bits * d.lanes;
    if (code == kDLUInt && bits == 8) return DType::u8;
    if (code == kDLInt && bits == 32) return DType::i32;
    if (code == kDLInt && bits == 64) return DType::i64;
    if (code == kDLFloat && bits == 32) return DType::f32;
    if (code == kDLFloat && bits == 16) return DType::f16;
    if (code == kDLBfloat && bits == 16) return DType::bf16;
    if (code == kDLFloat8_e4m3fn && bits == 8) return DType::e4m3;
    if (code == kDLFloat4_e2m1fn && bits == 8) return DType::e2m1x2;
    fail(name, type_name(d) + " elements", types);
  }

  Tensor view(const char* name, const TVMFFIAny& v, bool flatten, const char* types) const {
    if (!is_tensor(v)) fail(name, kind(v), "an array (torch, numpy or any with DLPack)");
    const DLTensor& d = v.type_index == kTVMFFITensor ? *TVMFFITensorGetDLTensorPtr(v.v_obj)
                                                      : *static_cast<const DLTensor*>(v.v_ptr);
    Tensor t;
    t.defined = true;
    t.data = static_cast<char*>(d.data) + d.byte_offset;
    t.dtype = dtype(name, d.dtype, types);
    t.device = device(name, d.device);
    const int extra = d.ndim > Tensor::kMaxRank ? d.ndim - Tensor::kMaxRank : 0;
    if (extra && !(flatten && is_dense(d)))
      fail(name, std::to_string(d.ndim) + " dimensions",
           "at most 4, or contiguous bytes where only they count");
    t.rank = d.ndim - extra;
    std::int64_t leading = 1, dense_stride = 1;
    bool strided = d.strides != nullptr;
    for (int i = 0; i < d.ndim; ++i)
      strided = strided && d.shape[i] > 0;  // of empty arrays they mean nothing
    for (int i = 0; i < extra; ++i) leading *= d.shape[i];
    for (int i = t.rank - 1; i >= 0; --i) {
      t.shape[i] = d.shape[i + extra] * (i == 0 ? leading : 1);
      t.stride[i] = strided ? d.strides[i + extra] : dense_stride;
      dense_stride *= d.shape[i + extra] > 0 ? d.shape[i + extra] : 1;
    }
    return t;
  }

  Device device(const char* name, const DLDevice& d) const {
    if (d.device_type == kDLCPU) return {};
    if (d.device_type == kDLCUDAHost) return {};  // pinned host memory
    if (d.device_type == kDLCUDA || d.device_type == kDLCUDAManaged)
      return {Device::cuda, d.device_id};
    fail(name, "an array on a device of DLPack type " + std::to_string(d.device_type),
         "the host or CUDA");
  }

  static bool is_dense(const DLTensor& d) {
    std::int64_t step = 1;
    for (int i = d.ndim - 1; d.strides && i >= 0; --i) {
      if (d.shape[i] == 0) return true;
      if (d.shape[i] != 1 && d.strides[i] != step) return false;
      step *= d.shape[i];
    }
    return true;
  }

  const char* operation_;
  const TVMFFIAny* values_;
  int count_;
  int next_ = 0;
};

}  // namespace kvscout::python
