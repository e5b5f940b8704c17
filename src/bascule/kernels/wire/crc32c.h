/* CRC-32C (Castagnoli). The instruction where the processor has one, eight tables otherwise. */
#ifndef BASCULE_CRC32C_H
#define BASCULE_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t crc32c_tables[8][256];

static void crc32c_make_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0x82F63B78u & (0u - (crc & 1u)));
        crc32c_tables[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int table = 1; table < 8; table++) {
            uint32_t crc = crc32c_tables[table - 1][byte];
            crc32c_tables[table][byte] = (crc >> 8) ^ crc32c_tables[0][crc & 0xFF];
        }
}

static uint32_t crc32c_portable(const uint8_t *data, size_t size, uint32_t seed) {
    uint32_t crc = ~seed;
    while (size >= 8) {
        uint32_t low = crc ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24);
        crc = crc32c_tables[7][low & 0xFF] ^ crc32c_tables[6][low >> 8 & 0xFF] ^ crc32c_tables[5][low >> 16 & 0xFF] ^
              crc32c_tables[4][low >> 24] ^ crc32c_tables[3][data[4]] ^ crc32c_tables[2][data[5]] ^
              crc32c_tables[1][data[6]] ^ crc32c_tables[0][data[7]];
        data += 8;
        size -= 8;
    }
    while (size--) crc = (crc >> 8) ^ crc32c_tables[0][(crc ^ *data++) & 0xFF];
    return ~crc;
}

#if defined(__x86_64__)

#include <nmmintrin.h>

/* The instruction takes three cycles and a new one can start every cycle. Three lanes run side by side, and their
   results are joined by multiplying with x^(8·LANE) modulo the polynomial: a table look-up per byte of the crc. */
#define CRC32C_LANE 1024
static uint32_t crc32c_shift[4][256];

static void crc32c_make_shift(void) {
    static const uint8_t zeros[CRC32C_LANE];
    for (int index = 0; index < 4; index++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            /* the pre- and post-inversion of crc32c_portable cancel out when both ends are inverted here */
            uint32_t crc = byte << (8 * index);
            crc32c_shift[index][byte] = ~crc32c_portable(zeros, CRC32C_LANE, ~crc);
        }
}

static inline uint32_t crc32c_over_lane(uint32_t crc) {
    return crc32c_shift[0][crc & 0xFF] ^ crc32c_shift[1][crc >> 8 & 0xFF] ^ crc32c_shift[2][crc >> 16 & 0xFF] ^
           crc32c_shift[3][crc >> 24];
}

__attribute__((target("sse4.2"))) static uint32_t crc32c_hardware(const uint8_t *data, size_t size, uint32_t seed) {
    uint64_t first = ~seed & 0xFFFFFFFFu;
    while (size >= 3 * CRC32C_LANE) {
        uint64_t second = 0, third = 0, word;
        for (size_t at = 0; at < CRC32C_LANE; at += 8) {
            memcpy(&word, data + at, 8);
            first = _mm_crc32_u64(first, word);
            memcpy(&word, data + CRC32C_LANE + at, 8);
            second = _mm_crc32_u64(second, word);
            memcpy(&word, data + 2 * CRC32C_LANE + at, 8);
            third = _mm_crc32_u64(third, word);
        }
        first = crc32c_over_lane((uint32_t)first) ^ second;
        first = crc32c_over_lane((uint32_t)first) ^ third;
        data += 3 * CRC32C_LANE;
        size -= 3 * CRC32C_LANE;
    }
    while (size >= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        first = _mm_crc32_u64(first, word);
        data += 8;
        size -= 8;
    }
    uint32_t crc = (uint32_t)first;
    while (size--) crc = _mm_crc32_u8(crc, *data++);
    return ~crc;
}
static int crc32c_has_hardware(void) { return __builtin_cpu_supports("sse4.2"); }

#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)

#include <arm_acle.h>

static void crc32c_make_shift(void) {}
static uint32_t crc32c_hardware(const uint8_t *data, size_t size, uint32_t seed) {
    uint32_t crc = ~seed;
    while (size >= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        crc = __crc32cd(crc, word);
        data += 8;
        size -= 8;
    }
    while (size--) crc = __crc32cb(crc, *data++);
    return ~crc;
}
static int crc32c_has_hardware(void) { return 1; }

#else

static void crc32c_make_shift(void) {}
#define crc32c_hardware crc32c_portable
static int crc32c_has_hardware(void) { return 0; }

#endif

static int crc32c_use_hardware;

/* Called once by each module that includes this file, before its first checksum. */
static inline void crc32c_setup(void) {
    crc32c_make_tables();
    crc32c_make_shift();
    crc32c_use_hardware = crc32c_has_hardware();
}

static inline uint32_t crc32c_of(const uint8_t *data, size_t size, uint32_t seed) {
    return crc32c_use_hardware ? crc32c_hardware(data, size, seed) : crc32c_portable(data, size, seed);
}

#endif
