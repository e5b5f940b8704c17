// What the load generators share: a clock, a socket that never blocks, bytes that wait to be sent, latencies.
// A generator that is cheap next to the server it measures: one thread, one connection, no allocation for a message.
#ifndef BASCULE_BENCH_LOAD_H
#define BASCULE_BENCH_LOAD_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { NAMES_MAX = 4096, READ_BYTES = 4 << 20, SILENCE_SECONDS_MAX = 20 };

__attribute__((noreturn, format(printf, 1, 2))) static inline void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

// The clock of Python's time.monotonic(): the two can be compared.
static inline double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static inline double own_cpu_seconds(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

// ── arguments: --name value ──

static inline const char *text_option(int count, char **arguments, const char *name, const char *otherwise) {
    for (int i = 2; i + 1 < count; i += 2)
        if (!strncmp(arguments[i], "--", 2) && !strcmp(arguments[i] + 2, name)) return arguments[i + 1];
    if (!otherwise) fail("--%s is missing", name);
    return otherwise;
}

static inline long number_option(int count, char **arguments, const char *name, long otherwise) {
    const char *text = text_option(count, arguments, name, "");
    return *text ? atol(text) : otherwise;
}

// "a,b,c" as names; returns how many.
static inline int split(const char *text, char **names) {
    int count = 0;
    for (char *rest = strdup(text), *name; (name = strsep(&rest, ",")); names[count++] = name)
        if (count == NAMES_MAX) fail("more than %d names", NAMES_MAX);
    return count;
}

// ── bytes that wait to be sent ──

typedef struct {
    uint8_t *bytes;
    size_t begin, end, capacity;
} Output;

static inline size_t pending(const Output *output) { return output->end - output->begin; }

static inline uint8_t *reserve(Output *output, size_t size) {
    if (output->end + size > output->capacity && output->begin) {
        memmove(output->bytes, output->bytes + output->begin, pending(output));
        output->end -= output->begin;
        output->begin = 0;
    }
    if (output->end + size > output->capacity) {
        output->capacity = (output->end + size) * 2;
        output->bytes = realloc(output->bytes, output->capacity);
        if (!output->bytes) fail("no memory");
    }
    return output->bytes + output->end;
}

static inline void put(Output *output, const void *bytes, size_t size) {
    memcpy(reserve(output, size), bytes, size);
    output->end += size;
}

// ── the connection ──

static inline int connect_to(int port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) fail("cannot connect to port %d: %s", port, strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

// Sends what the socket takes.
static inline void flush(int fd, Output *output) {
    while (pending(output)) {
        ssize_t sent = write(fd, output->bytes + output->begin, pending(output));
        if (sent < 0 && errno == EAGAIN) return;
        if (sent < 0) fail("cannot send: %s", strerror(errno));
        output->begin += (size_t)sent;
    }
    output->begin = output->end = 0;
}

// Waits until there is something to read (or room to write, while something waits to be sent), then reads what is there behind
// `filled`. Returns the bytes read, 0 after `wait_ms` without any.
static inline size_t receive(int fd, const Output *output, uint8_t *buffer, size_t filled, size_t capacity, int wait_ms) {
    struct pollfd polled = {.fd = fd, .events = (short)(POLLIN | (pending(output) ? POLLOUT : 0))};
    if (poll(&polled, 1, wait_ms) <= 0 || !(polled.revents & ~POLLOUT)) return 0;
    ssize_t size = read(fd, buffer + filled, capacity - filled);
    if (size == 0) fail("the server closed the connection");
    if (size < 0 && errno != EAGAIN) fail("cannot read: %s", strerror(errno));
    return size < 0 ? 0 : (size_t)size;
}

// ── protobuf ──

static inline size_t put_varint(uint8_t *at, uint64_t value) {
    size_t size = 0;
    for (; value >= 0x80; value >>= 7) at[size++] = (uint8_t)(value | 0x80);
    at[size++] = (uint8_t)value;
    return size;
}

static inline size_t put_field(uint8_t *at, int number, const void *bytes, size_t size) {
    size_t used = put_varint(at, (uint64_t)number << 3 | 2);
    used += put_varint(at + used, size);
    if (bytes) memcpy(at + used, bytes, size);
    else memset(at + used, 'x', size);
    return used + size;
}

static inline size_t put_number(uint8_t *at, int number, uint64_t value) {
    size_t used = put_varint(at, (uint64_t)number << 3);
    return used + put_varint(at + used, value);
}

static inline uint64_t read_varint(const uint8_t **at, const uint8_t *end) {
    uint64_t value = 0;
    for (int shift = 0; *at < end && shift < 64; shift += 7) {
        uint8_t byte = *(*at)++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) break;
    }
    return value;
}

// Finds the last field of this number; 0 when there is none. A length-delimited one is given as where it begins and its size.
static inline int find_field(const uint8_t *at, const uint8_t *end, unsigned number, uint64_t *value, const uint8_t **begin) {
    int found = 0;
    while (at < end) {
        uint64_t tag = read_varint(&at, end), read = 0;
        const uint8_t *content = at;
        if ((tag & 7) == 0) read = read_varint(&at, end);
        else if ((tag & 7) == 2) {
            read = read_varint(&at, end);
            content = at;
            if (read > (uint64_t)(end - at)) return found;
            at += read;
        } else return found;
        if (tag >> 3 == number) *value = read, *begin = content, found = 1;
    }
    return found;
}

// ── ids ──

// Correlation ids are distinct and of one length, so that a message is a template in which some digits change.
enum { ID_SIZE = 16 };

static inline void write_id(uint8_t *at, uint64_t number) {
    for (int i = ID_SIZE - 1; i >= 0; i--, number >>= 4) at[i] = (uint8_t)"0123456789abcdef"[number & 15];
}

// ── latencies ──

static inline int compare_doubles(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static inline double percentile_us(double *sorted, long count, double share) {
    if (!count) return 0;
    return sorted[(long)(share * (double)(count - 1))] * 1e6;
}

// ── the result: one line of JSON ──

static inline void report(double began, double ended, long messages, long failed, double *latencies, long latency_count) {
    qsort(latencies, (size_t)latency_count, sizeof *latencies, compare_doubles);
    printf("{\"began\": %.6f, \"ended\": %.6f, \"messages\": %ld, \"failed\": %ld, \"client_cpu\": %.3f, \"p50_us\": %.1f, "
           "\"p99_us\": %.1f}\n",
           began, ended, messages, failed, own_cpu_seconds(), percentile_us(latencies, latency_count, 0.5),
           percentile_us(latencies, latency_count, 0.99));
}

#endif
