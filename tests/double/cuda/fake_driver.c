/* libcuda.so.1, so that the library finds a driver: the stand-in for the CUDA runtime needs none.
 */
extern const char dtr_fake_driver[];
const char dtr_fake_driver[] = "stand-in";
