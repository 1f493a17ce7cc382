/* Versions, devices and the texts of errors. */
#include "fake.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

API cudaError_t cudaRuntimeGetVersion(int *version) {
    cudaError_t e = fake_enter_any("cudaRuntimeGetVersion", "%s", "");
    if (e == cudaSuccess) {
        *version = CUDART_VERSION;
    }
    return fake_result(e);
}

API cudaError_t cudaDriverGetVersion(int *version) {
    cudaError_t e = fake_enter_any("cudaDriverGetVersion", "%s", "");
    if (e == cudaSuccess) {
        *version = fake_set()->driver;
    }
    return fake_result(e);
}

API cudaError_t cudaGetDeviceCount(int *count) {
    cudaError_t e = fake_enter("cudaGetDeviceCount", "%s", "");
    if (e == cudaSuccess) {
        *count = fake_set()->n_devices;
    }
    return fake_result(e);
}

API cudaError_t cudaGetDevice(int *device) {
    cudaError_t e = fake_enter("cudaGetDevice", "%s", "");
    if (e == cudaSuccess) {
        *device = fake_device();
    }
    return fake_result(e);
}

static cudaError_t check_device(int device) {
    return device >= 0 && device < fake_set()->n_devices ? cudaSuccess : cudaErrorInvalidDevice;
}

API cudaError_t cudaSetDevice(int device) {
    cudaError_t e = fake_enter("cudaSetDevice", "device=%d", device);
    e = e == cudaSuccess ? check_device(device) : e;
    if (e == cudaSuccess) {
        fake_choose(device);
    }
    return fake_result(e);
}

/* FNV-1a over the name and the device, twice with different starts. */
static void identity(int device, unsigned char uuid[16]) {
    char text[96];
    const char *name = fake_set()->uuid;
    if (*name != '\0') {
        snprintf(text, sizeof text, "%s/%d", name, device);
    } else {
        snprintf(text, sizeof text, "process %d/%d", (int)getpid(), device);
    }
    for (int half = 0; half < 2; half++) {
        uint64_t h = UINT64_C(0xcbf29ce484222325) + (uint64_t)half;
        for (const char *c = text; *c != '\0'; c++) {
            h = (h ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
        }
        memcpy(uuid + 8 * half, &h, 8);
    }
}

API void dtr_fake_cuda_uuid(unsigned char uuid[16]) {
    identity(fake_device(), uuid);
}

API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device) {
    cudaError_t e = fake_enter("cudaGetDeviceProperties", "device=%d", device);
    e = e == cudaSuccess ? check_device(device) : e;
    if (e != cudaSuccess) {
        return fake_result(e);
    }
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "stand-in GPU %d", device);
    identity(device, (unsigned char *)prop->uuid.bytes);
    prop->totalGlobalMem = fake_set()->memory;
    prop->major = fake_set()->capability / 10;
    prop->minor = fake_set()->capability % 10;
    prop->multiProcessorCount = 132;
    prop->maxThreadsPerBlock = 1024;
    prop->warpSize = 32;
    prop->pciBusID = device + 1;
    return cudaSuccess;
}

API cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    cudaError_t e =
        fake_enter("cudaDeviceGetAttribute", "attribute=%d device=%d", (int)attribute, device);
    e = e == cudaSuccess ? check_device(device) : e;
    if (e != cudaSuccess) {
        return fake_result(e);
    }
    switch ((int)attribute) {
    case cudaDevAttrMultiProcessorCount:
        *value = 132;
        return cudaSuccess;
    case cudaDevAttrMaxThreadsPerBlock:
        *value = 1024;
        return cudaSuccess;
    case cudaDevAttrWarpSize:
        *value = 32;
        return cudaSuccess;
    case cudaDevAttrMemoryPoolsSupported:
        *value = 1;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *value = fake_set()->capability / 10;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = fake_set()->capability % 10;
        return cudaSuccess;
    default:
        return fake_result(cudaErrorInvalidValue);
    }
}

API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    cudaError_t e = fake_enter("cudaDeviceGetStreamPriorityRange", "%s", "");
    if (e == cudaSuccess) {
        *least = 0;
        *greatest = -5;
    }
    return fake_result(e);
}

API cudaError_t cudaDeviceSynchronize(void) {
    cudaError_t e = fake_enter("cudaDeviceSynchronize", "device=%d", fake_device());
    if (e == cudaSuccess) {
        fake_drain_device(fake_device());
    }
    return fake_result(e);
}

/* ---- texts ---- */

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
    { 0, "cudaSuccess", "no error" },
    { 1, "cudaErrorInvalidValue", "invalid argument" },
    { 2, "cudaErrorMemoryAllocation", "out of memory" },
    { 4, "cudaErrorCudartUnloading", "driver shutting down" },
    { 9, "cudaErrorInvalidConfiguration", "invalid configuration argument" },
    { 21, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy" },
    { 34, "cudaErrorStubLibrary",
      "CUDA driver is a st"
      "ub library" },
    { 35, "cudaErrorInsufficientDriver",
      "CUDA driver version is insufficient for CUDA runtime version" },
    { 98, "cudaErrorInvalidDeviceFunction", "invalid device function" },
    { 100, "cudaErrorNoDevice", "no CUDA-capable device is detected" },
    { 101, "cudaErrorInvalidDevice", "invalid device ordinal" },
    { 209, "cudaErrorNoKernelImageForDevice",
      "no kernel image is available for execution on the device" },
    { 400, "cudaErrorInvalidResourceHandle", "invalid resource handle" },
    { 600, "cudaErrorNotReady", "device not ready" },
    { 700, "cudaErrorIllegalAddress", "an illegal memory access was encountered" },
    { 719, "cudaErrorLaunchFailure", "unspecified launch failure" },
    { 999, "cudaErrorUnknown", "unknown error" },
};

API const char *cudaGetErrorString(cudaError_t e) {
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        if (errors[i].code == (int)e) {
            return errors[i].text;
        }
    }
    return "unrecognized error code";
}

API const char *cudaGetErrorName(cudaError_t e) {
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        if (errors[i].code == (int)e) {
            return errors[i].name;
        }
    }
    return "unrecognized error code";
}
