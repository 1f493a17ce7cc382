/* Two errors on purpose, to see that compute-sanitizer finds errors here: a write past the end of
 * a block (memcheck) and two threads that write one shared word (racecheck). */
#include <cstdio>
#include <cstring>

#include <cuda_runtime_api.h>

__global__ void past_the_end(int *p, int n) {
    p[n + (int)threadIdx.x] = 1;
}

__global__ void race(int *p) {
    __shared__ int word;
    word = (int)threadIdx.x;
    __syncthreads();
    p[threadIdx.x] = word;
}

int main(int argc, char **argv) {
    int *p = nullptr;
    if (cudaMalloc(&p, 64 * sizeof *p) != cudaSuccess) {
        return 77;
    }
    if (argc > 1 && std::strcmp(argv[1], "race") == 0) {
        race<<<1, 64>>>(p);
    } else {
        past_the_end<<<1, 64>>>(p, 64);
    }
    cudaError_t e = cudaDeviceSynchronize();
    std::printf("%s\n", cudaGetErrorString(e));
    cudaFree(p);
    return 0;
}
