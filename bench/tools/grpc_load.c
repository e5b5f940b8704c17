// Load over gRPC: HTTP/2 as far as one client connection needs it, many messages in a DATA frame, headers as fixed bytes.
//
//   grpc_load publish-async --port P --streams a,b [--partitions K] --messages N --size S --window W [--policy 1]
//       one PublishAsync call, messages round robin over all partitions of all streams, W at most unacked;
//       acks of the leader, or with --policy 1 of all in-sync replicas
//   grpc_load publish --port P --streams a [--partitions K] --messages N --size S [--calls C] [--policy 1]
//       unary Publish with a deadline, an ack each, C calls at a time; reports latencies
//   grpc_load subscribe --port P --streams a,b [--partitions K] --messages N
//       a Subscribe call from the earliest message for every partition of every stream, all on one connection; N messages in all
#include "load.h"

enum { DATA = 0, HEADERS = 1, RST_STREAM = 3, SETTINGS = 4, PING = 6, GOAWAY = 7, WINDOW_UPDATE = 8 };
enum { END_STREAM = 1, ACK = 1, END_HEADERS = 4 };
enum { FRAME_BYTES = 16384, WINDOW_BYTES = 4 << 20, DEFAULT_WINDOW_BYTES = 65535, REQUEST_BYTES_MAX = 4096 + 512 };

// A call that receives. Messages are only counted: what is left of the one at hand, and the prefix read so far.
typedef struct {
    uint32_t left;
    uint8_t prefix[5];
    int prefix_size;
    long messages;
    int64_t unreported;  // bytes received and not given back as window
} Call;

typedef struct {
    int fd;
    Output output;
    uint8_t *input;
    size_t filled;
    int64_t window, call_window, initial_window;  // what we may send
    int64_t unreported;
    int settings_seen, first_headers_sent;
    char authority[32];
    Call *calls;  // by (stream id - 1) / 2 modulo call_slots
    long call_slots;
    long messages, ended, failed;
    // with the content of each whole message that lies in one frame; messages cut by a frame are counted without a look
    void (*on_message)(long *failed, const uint8_t *content, size_t size);
} Connection;

static uint32_t read_32(const uint8_t *at) { return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3]; }

static void put_32(Output *output, uint32_t value) {
    uint8_t bytes[4] = {(uint8_t)(value >> 24), (uint8_t)(value >> 16), (uint8_t)(value >> 8), (uint8_t)value};
    put(output, bytes, 4);
}

static void put_frame(Output *output, size_t size, int type, int flags, uint32_t stream) {
    uint8_t head[5] = {(uint8_t)(size >> 16), (uint8_t)(size >> 8), (uint8_t)size, (uint8_t)type, (uint8_t)flags};
    put(output, head, 5);
    put_32(output, stream);
}

static size_t put_string(uint8_t *at, const char *text) {
    size_t size = strlen(text);
    at[0] = (uint8_t)size;
    memcpy(at + 1, text, size);
    return size + 1;
}

// The first call puts its headers into the dynamic table, the later ones are seven bytes: as real clients do it.
static void put_headers(Connection *connection, uint32_t stream, const char *path) {
    uint8_t block[512];
    size_t size = 0;
    block[size++] = 0x83;  // :method POST
    block[size++] = 0x86;  // :scheme http
    if (!connection->first_headers_sent) {
        connection->first_headers_sent = 1;
        block[size++] = 0x44;  // :path
        size += put_string(block + size, path);
        block[size++] = 0x41;  // :authority
        size += put_string(block + size, connection->authority);
        block[size++] = 0x5f;  // content-type
        size += put_string(block + size, "application/grpc");
        block[size++] = 0x40;
        size += put_string(block + size, "te");
        size += put_string(block + size, "trailers");
        block[size++] = 0x40;
        size += put_string(block + size, "grpc-timeout");
        size += put_string(block + size, "60S");
    } else
        for (uint8_t index = 0xC2; index >= 0xBE; index--) block[size++] = index;  // oldest first
    put_frame(&connection->output, size, HEADERS, END_HEADERS, stream);
    put(&connection->output, block, size);
}

static void open_connection(Connection *connection, int port) {
    static const uint8_t settings[12] = {0, 4, WINDOW_BYTES >> 24, (WINDOW_BYTES >> 16) & 255, 0, 0, 0, 5, 0, 0, FRAME_BYTES >> 8, 0};
    memset(connection, 0, sizeof *connection);
    connection->fd = connect_to(port);
    connection->input = malloc(READ_BYTES);
    connection->window = connection->call_window = connection->initial_window = DEFAULT_WINDOW_BYTES;
    snprintf(connection->authority, sizeof connection->authority, "127.0.0.1:%d", port);
    put(&connection->output, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
    put_frame(&connection->output, sizeof settings, SETTINGS, 0, 0);
    put(&connection->output, settings, sizeof settings);
    put_frame(&connection->output, 4, WINDOW_UPDATE, 0, 0);
    put_32(&connection->output, WINDOW_BYTES - DEFAULT_WINDOW_BYTES);
}

static void have_calls(Connection *connection, long slots) {
    connection->call_slots = slots;
    connection->calls = calloc((size_t)slots, sizeof *connection->calls);
}

static Call *call_of(Connection *connection, uint32_t stream) { return connection->calls + (stream - 1) / 2 % connection->call_slots; }

// ── what comes in ──

static void count_message(Connection *connection, Call *call) {
    call->messages++;
    connection->messages++;
}

static void on_data(Connection *connection, Call *call, const uint8_t *at, size_t size) {
    const uint8_t *end = at + size;
    while (at < end) {
        if (call->left) {
            size_t part = (size_t)(end - at) < call->left ? (size_t)(end - at) : call->left;
            at += part;
            call->left -= (uint32_t)part;
            if (!call->left) count_message(connection, call);
            continue;
        }
        call->prefix[call->prefix_size++] = *at++;
        if (call->prefix_size < 5) continue;
        call->prefix_size = 0;
        call->left = read_32(call->prefix + 1);
        if (!call->left) count_message(connection, call);
        else if (connection->on_message && (size_t)(end - at) >= call->left) connection->on_message(&connection->failed, at, call->left);
    }
}

static void give_back(Connection *connection, int64_t *unreported, uint32_t stream) {
    if (*unreported < WINDOW_BYTES / 2) return;
    put_frame(&connection->output, 4, WINDOW_UPDATE, 0, stream);
    put_32(&connection->output, (uint32_t)*unreported);
    *unreported = 0;
}

static void on_settings(Connection *connection, const uint8_t *at, size_t size) {
    for (size_t i = 0; i + 6 <= size; i += 6)
        if (at[i] == 0 && at[i + 1] == 4) {
            int64_t initial = read_32(at + i + 2);
            connection->call_window += initial - connection->initial_window;
            connection->initial_window = initial;
        }
    put_frame(&connection->output, 0, SETTINGS, ACK, 0);
    connection->settings_seen = 1;
}

static void on_frame(Connection *connection, int type, int flags, uint32_t stream, const uint8_t *content, size_t size) {
    if (type == DATA) {
        Call *call = call_of(connection, stream);
        on_data(connection, call, content, size);
        connection->unreported += (int64_t)size;
        call->unreported += (int64_t)size;
        if (!(flags & END_STREAM)) give_back(connection, &call->unreported, stream);
        give_back(connection, &connection->unreported, 0);
    } else if (type == SETTINGS && !(flags & ACK)) on_settings(connection, content, size);
    else if (type == PING && !(flags & ACK)) {
        put_frame(&connection->output, 8, PING, ACK, 0);
        put(&connection->output, content, 8);
    } else if (type == WINDOW_UPDATE) *(stream ? &connection->call_window : &connection->window) += read_32(content) & 0x7fffffff;
    else if (type == GOAWAY) fail("GOAWAY with error %u: %.*s", read_32(content + 4), (int)size - 8, content + 8);
    else if (type == RST_STREAM) fail("the call was reset with error %u", read_32(content));
    if ((type == DATA || type == HEADERS) && flags & END_STREAM) {
        Call *call = call_of(connection, stream);
        connection->ended++;
        call->unreported = 0;
    }
}

// Sends what waits and takes in what has come. Returns 0 when nothing came for `wait_ms`.
static int turn(Connection *connection, int wait_ms) {
    flush(connection->fd, &connection->output);
    size_t size = receive(connection->fd, &connection->output, connection->input, connection->filled, READ_BYTES, wait_ms);
    connection->filled += size;
    size_t at = 0, length;
    for (; connection->filled - at >= 9; at += 9 + length) {
        const uint8_t *head = connection->input + at;
        length = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
        if (connection->filled - at < 9 + length) break;
        on_frame(connection, head[3], head[4], read_32(head + 5) & 0x7fffffff, head + 9, length);
    }
    memmove(connection->input, connection->input + at, connection->filled - at);
    connection->filled -= at;
    return size > 0;
}

// One turn of a loop that must not wait for ever: fails when nothing came for too long.
static double wait_turn(Connection *connection, double heard, const char *waiting_for) {
    if (turn(connection, 100)) return now();
    if (now() - heard > SILENCE_SECONDS_MAX) fail("%ld %s came, then silence (send windows: connection %ld, call %ld)",
        connection->messages, waiting_for, (long)connection->window, (long)connection->call_window);
    return heard;
}

// ── requests ──

typedef struct {
    uint8_t bytes[REQUEST_BYTES_MAX];  // prefix and PublishRequest
    size_t size, id_at;
} Request;

static void set_prefix(Request *request) {
    size_t size = request->size - 5;
    uint8_t prefix[5] = {0, (uint8_t)(size >> 24), (uint8_t)(size >> 16), (uint8_t)(size >> 8), (uint8_t)size};
    memcpy(request->bytes, prefix, 5);
}

static Request *make_publish_requests(int count, char **arguments, long *request_count) {
    static char *streams[NAMES_MAX];
    int stream_count = split(text_option(count, arguments, "streams", NULL), streams);
    long partitions = number_option(count, arguments, "partitions", 1), size = number_option(count, arguments, "size", 128);
    long policy = number_option(count, arguments, "policy", 0);
    if (size > 4096) fail("at most 4096 bytes");
    *request_count = stream_count * partitions;
    Request *requests = calloc((size_t)*request_count, sizeof *requests);
    for (long i = 0; i < *request_count; i++) {
        Request *request = requests + i;
        const char *stream = streams[i / partitions];
        uint8_t *at = request->bytes + 5;
        at += put_field(at, 2, NULL, (size_t)size);
        at += put_field(at, 3, stream, strlen(stream));
        if (i % partitions) at += put_number(at, 4, (uint64_t)(i % partitions));
        if (policy) at += put_number(at, 8, (uint64_t)policy);
        at += put_field(at, 7, NULL, ID_SIZE);
        request->size = (size_t)(at - request->bytes);
        request->id_at = request->size - ID_SIZE;
        set_prefix(request);
    }
    return requests;
}

// PublishResponse: field 1 is the ack, field 2 the error; an ack that has an error in it is a failure too.
static void check_response(long *failed, const uint8_t *content, size_t size) {
    uint64_t value = 0, error = 0;
    const uint8_t *begin, *inner;
    if (find_field(content, content + size, 2, &value, &begin) || !find_field(content, content + size, 1, &value, &begin)) (*failed)++;
    else if (find_field(begin, begin + value, 10, &error, &inner) && error) (*failed)++;
}

// ── the loads ──

static int publish_async(int count, char **arguments) {
    Connection connection;
    long request_count, sent = 0, messages = number_option(count, arguments, "messages", 100000);
    long window = number_option(count, arguments, "window", 8000);
    Request *requests = make_publish_requests(count, arguments, &request_count);
    static uint8_t frame[FRAME_BYTES];
    open_connection(&connection, (int)number_option(count, arguments, "port", 9292));
    have_calls(&connection, 1);
    connection.on_message = check_response;
    put_headers(&connection, 1, "/proto.API/PublishAsync");
    while (!connection.settings_seen) wait_turn(&connection, now(), "SETTINGS");
    double began = now(), heard = began;
    while (connection.messages < messages) {
        while (pending(&connection.output) < 262144) {
            size_t filled = 0;
            int64_t room = connection.window < connection.call_window ? connection.window : connection.call_window;
            for (; sent < messages && sent - connection.messages < window; sent++) {
                Request *request = requests + sent % request_count;
                if (filled + request->size > FRAME_BYTES || (int64_t)(filled + request->size) > room) break;
                memcpy(frame + filled, request->bytes, request->size);
                write_id(frame + filled + request->id_at, (uint64_t)sent);
                filled += request->size;
            }
            if (!filled) break;
            put_frame(&connection.output, filled, DATA, 0, 1);
            put(&connection.output, frame, filled);
            connection.window -= (int64_t)filled;
            connection.call_window -= (int64_t)filled;
        }
        heard = wait_turn(&connection, heard, "acks");
        if (connection.ended) fail("the call ended after %ld acks", connection.messages);
    }
    report(began, now(), connection.messages, connection.failed, NULL, 0);
    return 0;
}

static int publish(int count, char **arguments) {
    Connection connection;
    long request_count, sent = 0, timed = 0, messages = number_option(count, arguments, "messages", 10000);
    long calls = number_option(count, arguments, "calls", 1);
    Request *requests = make_publish_requests(count, arguments, &request_count);
    double *latencies = calloc((size_t)messages, sizeof *latencies);
    open_connection(&connection, (int)number_option(count, arguments, "port", 9292));
    have_calls(&connection, calls * 2);
    connection.on_message = check_response;
    while (!connection.settings_seen) wait_turn(&connection, now(), "SETTINGS");
    double began = now(), posted = began, heard = began;
    while (connection.ended < messages) {
        for (; sent < messages && sent - connection.ended < calls; sent++) {
            Request *request = requests + sent % request_count;
            uint32_t stream = (uint32_t)(2 * sent + 1);
            if (connection.window < (int64_t)request->size) break;
            posted = now();
            write_id(request->bytes + request->id_at, (uint64_t)sent);
            put_headers(&connection, stream, "/proto.API/Publish");
            put_frame(&connection.output, request->size, DATA, END_STREAM, stream);
            put(&connection.output, request->bytes, request->size);
            connection.window -= (int64_t)request->size;
        }
        long before = connection.ended;
        heard = wait_turn(&connection, heard, "responses");
        if (calls == 1 && connection.ended > before) latencies[timed++] = heard - posted;
    }
    long refused = messages - connection.messages;  // calls that ended without a response
    report(began, now(), connection.messages, connection.failed + refused, latencies, timed);
    return 0;
}

static void put_subscribe(Connection *connection, uint32_t stream, const char *name, long partition) {
    Request request;
    uint8_t *at = request.bytes + 5;
    at += put_field(at, 1, name, strlen(name));
    if (partition) at += put_number(at, 2, (uint64_t)partition);
    at += put_number(at, 3, 2);  // EARLIEST
    request.size = (size_t)(at - request.bytes);
    set_prefix(&request);
    put_headers(connection, stream, "/proto.API/Subscribe");
    put_frame(&connection->output, request.size, DATA, END_STREAM, stream);
    put(&connection->output, request.bytes, request.size);
}

static int subscribe(int count, char **arguments) {
    static char *streams[NAMES_MAX];
    Connection connection;
    int stream_count = split(text_option(count, arguments, "streams", NULL), streams);
    long partitions = number_option(count, arguments, "partitions", 1), calls = stream_count * partitions;
    long messages = number_option(count, arguments, "messages", 1);
    open_connection(&connection, (int)number_option(count, arguments, "port", 9292));
    have_calls(&connection, calls);
    while (!connection.settings_seen) wait_turn(&connection, now(), "SETTINGS");
    double began = now(), heard = began;
    for (long i = 0; i < calls; i++) put_subscribe(&connection, (uint32_t)(2 * i + 1), streams[i / partitions], i % partitions);
    while (connection.messages < messages + calls) {  // each call begins with an empty message
        heard = wait_turn(&connection, heard, "messages");
        if (connection.ended) fail("a subscription ended after %ld messages", connection.messages);
    }
    report(began, now(), connection.messages - calls, 0, NULL, 0);
    return 0;
}

int main(int count, char **arguments) {
    const char *mode = count > 1 ? arguments[1] : "";
    if (!strcmp(mode, "publish-async")) return publish_async(count, arguments);
    if (!strcmp(mode, "publish")) return publish(count, arguments);
    if (!strcmp(mode, "subscribe")) return subscribe(count, arguments);
    fail("grpc_load publish-async|publish|subscribe --name value …");
}
