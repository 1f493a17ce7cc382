/* What one step multiplies with, in the two types of arithmetic. */
#ifndef DTR_OPTIM_NUMBERS_H
#define DTR_OPTIM_NUMBERS_H

#define DTR__OPTIM_NUMBERS(real, name)                                        \
    typedef struct name {                                                     \
        real rate, momentum, beta1, beta2, rest1, rest2, fix1, fix2, epsilon; \
    } name;
DTR__OPTIM_NUMBERS(float, dtr__numbers_float)
DTR__OPTIM_NUMBERS(double, dtr__numbers_double)

#endif /* DTR_OPTIM_NUMBERS_H */
