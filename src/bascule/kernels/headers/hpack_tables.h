/* The two tables of HPACK (RFC 7541): the static header table (appendix A) and the lengths of the Huffman codes (appendix B).

   The code is canonical: sorted by length, then by symbol, every code is the one before it plus one. Lengths are all there is to know. */

#ifndef BASCULE_HPACK_TABLES_H
#define BASCULE_HPACK_TABLES_H

#include <stdint.h>

#define HPACK_STATIC_ENTRIES 61
#define HPACK_SYMBOLS 257 /* 256 bytes, then end-of-string */

typedef struct {
    const char *name;
    uint32_t name_size;
    const char *value;
    uint32_t value_size;
} hpack_static_entry;

#define ENTRY(name, value) {name, sizeof(name) - 1, value, sizeof(value) - 1}

static const hpack_static_entry hpack_static_table[HPACK_STATIC_ENTRIES] = {
    ENTRY(":authority", ""),
    ENTRY(":method", "GET"),
    ENTRY(":method", "POST"),
    ENTRY(":path", "/"),
    ENTRY(":path", "/index.html"),
    ENTRY(":scheme", "http"),
    ENTRY(":scheme", "https"),
    ENTRY(":status", "200"),
    ENTRY(":status", "204"),
    ENTRY(":status", "206"),
    ENTRY(":status", "304"),
    ENTRY(":status", "400"),
    ENTRY(":status", "404"),
    ENTRY(":status", "500"),
    ENTRY("accept-charset", ""),
    ENTRY("accept-encoding", "gzip, deflate"),
    ENTRY("accept-language", ""),
    ENTRY("accept-ranges", ""),
    ENTRY("accept", ""),
    ENTRY("access-control-allow-origin", ""),
    ENTRY("age", ""),
    ENTRY("allow", ""),
    ENTRY("authorization", ""),
    ENTRY("cache-control", ""),
    ENTRY("content-disposition", ""),
    ENTRY("content-encoding", ""),
    ENTRY("content-language", ""),
    ENTRY("content-length", ""),
    ENTRY("content-location", ""),
    ENTRY("content-range", ""),
    ENTRY("content-type", ""),
    ENTRY("cookie", ""),
    ENTRY("date", ""),
    ENTRY("etag", ""),
    ENTRY("expect", ""),
    ENTRY("expires", ""),
    ENTRY("from", ""),
    ENTRY("host", ""),
    ENTRY("if-match", ""),
    ENTRY("if-modified-since", ""),
    ENTRY("if-none-match", ""),
    ENTRY("if-range", ""),
    ENTRY("if-unmodified-since", ""),
    ENTRY("last-modified", ""),
    ENTRY("link", ""),
    ENTRY("location", ""),
    ENTRY("max-forwards", ""),
    ENTRY("proxy-authenticate", ""),
    ENTRY("proxy-authorization", ""),
    ENTRY("range", ""),
    ENTRY("referer", ""),
    ENTRY("refresh", ""),
    ENTRY("retry-after", ""),
    ENTRY("server", ""),
    ENTRY("set-cookie", ""),
    ENTRY("strict-transport-security", ""),
    ENTRY("transfer-encoding", ""),
    ENTRY("user-agent", ""),
    ENTRY("vary", ""),
    ENTRY("via", ""),
    ENTRY("www-authenticate", ""),
};

#undef ENTRY

static const uint8_t hpack_code_lengths[HPACK_SYMBOLS] = {
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
};

#endif
