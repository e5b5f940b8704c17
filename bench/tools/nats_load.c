// Load over NATS, against a broker, JetStream, or nats-server alone.
//
//   nats_load blast --port P --subjects a,b --messages N --size S
//       plain publishes as fast as the server takes them, one subject after the other
//   nats_load acked --port P --subjects a,b --messages N --size S --window W [--envelope 1 [--policy 1]]
//       publishes with an ack each, W at most unanswered: publish envelopes with an ack inbox, or JetStream's reply subject.
//       Acks of the leader, or with --policy 1 of all in-sync replicas.
//       With a window of 1 the latencies are reported.
//   nats_load count --port P --subject S --messages N [--silence-ms M]
//       a subscriber that only counts, until all N came or nothing came for M; says `ready` when it is subscribed
//   nats_load pull --port P --stream S --consumer C --messages N --batch B
//       JetStream's pull consumer: B messages are asked for at a time, the next ones before the last ones came
//   nats_load echo --port P --subject S
//       answers every message at once, for ever: the shortest way that anything behind NATS can have; says `ready` when it is subscribed
#include "load.h"

static const char INBOX[] = "_INBOX.bench";

typedef struct {
    int fd;
    Output output;
    uint8_t *input;
    size_t filled;
    long messages, failed, bytes, pongs;  // seen so far
    const char *echo_to;                   // answer each message there
    void (*on_message)(long *failed, const uint8_t *payload, size_t size);
} Link;

// ── what comes in ──

// "MSG subject sid [reply] size" and "HMSG subject sid [reply] header-size size": the size is the last word.
static size_t last_number(const uint8_t *line, size_t size) {
    size_t begin = size;
    while (begin && line[begin - 1] != ' ') begin--;
    return strtoul((const char *)line + begin, NULL, 10);
}

static void on_line(Link *link, const uint8_t *line, size_t size) {
    if (!strncmp((const char *)line, "PING", 4)) put(&link->output, "PONG\r\n", 6);
    else if (!strncmp((const char *)line, "PONG", 4)) link->pongs++;
    else if (!strncmp((const char *)line, "-ERR", 4)) fail("%.*s", (int)size, line);
}

static void answer(Link *link) {
    static const char ack[] = "{\"seq\":1}";
    char line[512];
    int size = snprintf(line, sizeof line, "PUB %s %zu\r\n%s\r\n", link->echo_to, sizeof ack - 1, ack);
    put(&link->output, line, (size_t)size);
}

// Takes whole protocol messages from the front of the input.
static void scan(Link *link) {
    size_t at = 0;
    for (;;) {
        const uint8_t *line = link->input + at, *end = memchr(line, '\n', link->filled - at);
        if (!end) break;
        size_t size = (size_t)(end - line) - 1, whole = (size_t)(end - line) + 1;
        int headers = line[0] == 'H';
        if (line[0] == 'M' || headers) {
            size_t payload = last_number(line, size);
            if (link->filled - at < whole + payload + 2) break;
            if (headers && !strncmp((const char *)end + 1, "NATS/1.0 ", 9)) {
                // a status of JetStream (no messages, request over): no message
            } else {
                link->messages++;
                link->bytes += (long)payload;
                if (link->on_message) link->on_message(&link->failed, end + 1, payload);
                if (link->echo_to) answer(link);
            }
            whole += payload + 2;
        } else on_line(link, line, size);
        at += whole;
    }
    memmove(link->input, link->input + at, link->filled - at);
    link->filled -= at;
}

// Sends what waits and takes in what has come. Returns 0 when nothing came for `wait_ms`.
static int turn(Link *link, int wait_ms) {
    flush(link->fd, &link->output);
    size_t size = receive(link->fd, &link->output, link->input, link->filled, READ_BYTES, wait_ms);
    link->filled += size;
    if (size) scan(link);
    return size > 0;
}

static void await_pong(Link *link) {
    long before = link->pongs;
    double silent = now();
    put(&link->output, "PING\r\n", 6);
    while (link->pongs == before) {
        if (turn(link, 100)) silent = now();
        else if (now() - silent > SILENCE_SECONDS_MAX && !pending(&link->output)) fail("no PONG came");
    }
}

static void open_link(Link *link, int port) {
    static const char hello[] = "CONNECT {\"verbose\":false,\"pedantic\":false,\"lang\":\"c\",\"version\":\"1\",\"protocol\":1,"
                                "\"headers\":true,\"no_responders\":true}\r\n";
    memset(link, 0, sizeof *link);
    link->fd = connect_to(port);
    link->input = malloc(READ_BYTES + 1);
    put(&link->output, hello, sizeof hello - 1);
    await_pong(link);
}

static void subscribe(Link *link, const char *subject) {
    char line[512];
    int size = snprintf(line, sizeof line, "SUB %s 1\r\n", subject);
    put(&link->output, line, (size_t)size);
    await_pong(link);
}

// ── plain publishes ──

// Whole rounds over the subjects, at least 64 KiB; `ends` says where each message ends, so that the last block can be cut.
static long make_block(Output *block, size_t *ends, char **subjects, int count, size_t size) {
    long messages = 0;
    while (pending(block) < 65536)
        for (int i = 0; i < count; i++) {
            uint8_t *at = reserve(block, size + 512);
            int head = sprintf((char *)at, "PUB %s %zu\r\n", subjects[i], size);
            memset(at + head, 'x', size);
            memcpy(at + head + size, "\r\n", 2);
            block->end += (size_t)head + size + 2;
            ends[messages++] = block->end;
        }
    return messages;
}

static int blast(int count, char **arguments) {
    static char *subjects[NAMES_MAX];
    static size_t ends[65536 / 16 + NAMES_MAX];
    Link link;
    Output block = {0};
    int subject_count = split(text_option(count, arguments, "subjects", NULL), subjects);
    long messages = number_option(count, arguments, "messages", 1000000), sent = 0;
    long in_block = make_block(&block, ends, subjects, subject_count, (size_t)number_option(count, arguments, "size", 128));
    open_link(&link, (int)number_option(count, arguments, "port", 4222));
    double began = now();
    while (sent < messages) {
        long these = messages - sent < in_block ? messages - sent : in_block;
        Output part = {.bytes = block.bytes, .end = ends[these - 1]};
        while (flush(link.fd, &part), pending(&part)) {
            // Nothing is read here: an answer to the server's PING would land in the middle of a message.
            struct pollfd polled = {.fd = link.fd, .events = POLLOUT};
            if (poll(&polled, 1, SILENCE_SECONDS_MAX * 1000) <= 0) fail("the server takes no more");
        }
        sent += these;
    }
    await_pong(&link);
    report(began, now(), sent, 0, NULL, 0);
    return 0;
}

// ── publishes with acks ──

typedef struct {
    uint8_t bytes[4096 + 512];
    size_t size, id_at;  // id_at 0: no id in it
} Template;

static size_t put_envelope(uint8_t *at, size_t value_size, long policy, size_t *id_at) {
    static const uint8_t header[8] = {0xB9, 0x0E, 0x43, 0xB4, 0, 8, 0, 0};
    memcpy(at, header, 8);
    size_t used = 8;
    used += put_field(at + used, 3, NULL, value_size);
    used += put_field(at + used, 10, INBOX, sizeof INBOX - 1);
    if (policy) used += put_number(at + used, 12, (uint64_t)policy);
    used += put_field(at + used, 11, NULL, ID_SIZE);
    *id_at = used - ID_SIZE;
    return used;
}

static void make_template(Template *template, const char *subject, size_t size, int envelope, long policy) {
    uint8_t payload[4096];
    size_t id_at = 0;
    if (size > 3900) fail("at most 3900 bytes");
    if (envelope) size = put_envelope(payload, size, policy, &id_at);
    else memset(payload, 'x', size);
    int head = sprintf((char *)template->bytes, envelope ? "PUB %s %zu\r\n" : "PUB %s _INBOX.bench %zu\r\n", subject, size);
    memcpy(template->bytes + head, payload, size);
    memcpy(template->bytes + head + size, "\r\n", 2);
    template->size = (size_t)head + size + 2;
    template->id_at = id_at ? (size_t)head + id_at : 0;
}

static void check_ack_envelope(long *failed, const uint8_t *payload, size_t size) {
    uint64_t error = 0;
    const uint8_t *begin;
    if (size < 8 || payload[7] != 1) (*failed)++;
    else if (find_field(payload + 8, payload + size, 10, &error, &begin) && error) (*failed)++;
}

static void check_jetstream_ack(long *failed, const uint8_t *payload, size_t size) {
    if (memmem(payload, size, "\"error\"", 7) || !memmem(payload, size, "\"seq\"", 5)) (*failed)++;
}

static int acked(int count, char **arguments) {
    static char *subjects[NAMES_MAX];
    Link link;
    int subject_count = split(text_option(count, arguments, "subjects", NULL), subjects);
    int envelope = (int)number_option(count, arguments, "envelope", 0);
    long policy = number_option(count, arguments, "policy", 0);
    long messages = number_option(count, arguments, "messages", 100000), window = number_option(count, arguments, "window", 1000);
    Template *templates = calloc((size_t)subject_count, sizeof *templates);
    for (int i = 0; i < subject_count; i++)
        make_template(templates + i, subjects[i], (size_t)number_option(count, arguments, "size", 128), envelope, policy);
    double *latencies = calloc((size_t)messages, sizeof *latencies);
    open_link(&link, (int)number_option(count, arguments, "port", 4222));
    link.on_message = envelope ? check_ack_envelope : check_jetstream_ack;
    subscribe(&link, INBOX);
    long sent = 0, timed = 0;
    double began = now(), posted = began, heard = began;
    while (link.messages < messages) {
        for (; sent < messages && sent - link.messages < window && pending(&link.output) < 262144; sent++) {
            Template *template = templates + sent % subject_count;
            if (template->id_at) write_id(template->bytes + template->id_at, (uint64_t)sent);
            put(&link.output, template->bytes, template->size);
            posted = now();
        }
        long before = link.messages;
        if (turn(&link, 100)) heard = now();
        else if (now() - heard > SILENCE_SECONDS_MAX) fail("%ld of %ld messages were acked, then silence", before, messages);
        if (window == 1 && link.messages > before) latencies[timed++] = heard - posted;
    }
    report(began, now(), link.messages, link.failed, latencies, timed);
    return 0;
}

// ── subscribers that count ──

static void count_until(Link *link, long messages, long silence_ms) {
    double began = 0, heard = now();
    puts("ready");
    fflush(stdout);
    while (link->messages < messages) {
        if (turn(link, 50)) {
            heard = now();
            if (!began && link->messages) began = heard;
        } else if ((now() - heard) * 1000 > (double)(link->messages ? silence_ms : SILENCE_SECONDS_MAX * 1000)) break;
    }
    report(began, heard, link->messages, 0, NULL, 0);
}

static int count_messages(int count, char **arguments) {
    Link link;
    open_link(&link, (int)number_option(count, arguments, "port", 4222));
    subscribe(&link, text_option(count, arguments, "subject", NULL));
    count_until(&link, number_option(count, arguments, "messages", 1), number_option(count, arguments, "silence-ms", 3000));
    return 0;
}

static int pull(int count, char **arguments) {
    Link link;
    char request[512];
    long messages = number_option(count, arguments, "messages", 1), batch = number_option(count, arguments, "batch", 1000);
    const char *stream = text_option(count, arguments, "stream", NULL), *consumer = text_option(count, arguments, "consumer", NULL);
    open_link(&link, (int)number_option(count, arguments, "port", 4222));
    subscribe(&link, INBOX);
    char body[64];
    int body_size = sprintf(body, "{\"batch\":%ld}", batch);
    int size = snprintf(request, sizeof request, "PUB $JS.API.CONSUMER.MSG.NEXT.%s.%s %s %d\r\n%s\r\n", stream, consumer, INBOX,
                        body_size, body);
    double began = now(), heard = began;
    long asked = 0;
    while (link.messages < messages) {
        for (; asked < messages && asked - link.messages <= batch; asked += batch) put(&link.output, request, (size_t)size);
        if (turn(&link, 100)) heard = now();
        else if (now() - heard > SILENCE_SECONDS_MAX) fail("%ld of %ld messages came, then silence", link.messages, messages);
    }
    report(began, heard, link.messages, 0, NULL, 0);
    return 0;
}

static void echo(int count, char **arguments) {
    Link link;
    open_link(&link, (int)number_option(count, arguments, "port", 4222));
    subscribe(&link, text_option(count, arguments, "subject", NULL));
    link.echo_to = INBOX;
    puts("ready");
    fflush(stdout);
    for (;;) turn(&link, 1000);
}

int main(int count, char **arguments) {
    const char *mode = count > 1 ? arguments[1] : "";
    if (!strcmp(mode, "blast")) return blast(count, arguments);
    if (!strcmp(mode, "acked")) return acked(count, arguments);
    if (!strcmp(mode, "count")) return count_messages(count, arguments);
    if (!strcmp(mode, "pull")) return pull(count, arguments);
    if (!strcmp(mode, "echo")) echo(count, arguments);
    fail("nats_load blast|acked|count|pull|echo --name value …");
}
