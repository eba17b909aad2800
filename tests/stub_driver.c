// A stand-in for the NVIDIA driver's libraries libcuda.so.1 and libnvidia-ml.so.1, which finds one
// GPU and can do nothing with it. vLLM's build for GPUs is linked to these functions of libcuda.
// gcc -shared -fPIC -DCUDA_VERSION=13000 -o libcuda.so.1 stub_driver.c

#define NO_DEVICE 100  // CUDA_ERROR_NO_DEVICE
#define STUB(name) int name(void) { return NO_DEVICE; }

#ifndef STATUS
#define STATUS 0  // of cuDriverGetVersion; the stub in CUDA's toolkit returns 34
#endif

int cuDriverGetVersion(int *version) { *version = CUDA_VERSION; return STATUS; }

STUB(cuInit)
STUB(cuCtxGetCurrent)
STUB(cuCtxSetCurrent)
STUB(cuDeviceGetAttribute)
STUB(cuDeviceGetCount)
STUB(cuDevicePrimaryCtxRetain)
STUB(cuGetErrorString)
STUB(cuGetProcAddress_v2)
STUB(cuMemAddressFree)
STUB(cuMemAddressReserve)
STUB(cuMemCreate)
STUB(cuMemGetAllocationGranularity)
STUB(cuMemMap)
STUB(cuMemRelease)
STUB(cuMemSetAccess)
STUB(cuMemUnmap)
STUB(cuPointerGetAttribute)
STUB(cuTensorMapEncodeTiled)

// By NVML, torch counts the GPUs without starting CUDA, whatever the driver's version
int nvmlInit(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
