/* A load generator for brokers over WebSocket: PCP v1, MQTT 3.1.1 and NATS, from one thread.
 * The protocol "jetstream" is NATS where a message is under way until it has arrived and its stream has answered.
 *
 *   pcp_load PROTOCOL HOST PORT pairs|fan|hold COUNT WINDOW BYTES
 *
 * pairs: COUNT senders, each with a receiver of its own and WINDOW messages under way.
 * fan:   one sender, COUNT receivers who all get each message, WINDOW messages under way.
 * hold:  COUNT connections that say nothing.
 *
 * After "ready" on stdout every line "go SECONDS" on stdin runs the load that long, waits for what is under way, and
 * prints "DELIVERIES SECONDS LOST". A run ends early where nothing arrives for STALL_SECONDS: what is under way then is
 * lost. Ends at the end of stdin. Connections are set up in groups, step by step, because some brokers let each step
 * wait for their next turn; the load itself is one epoll loop. The masking key is zero, so that the generator's own
 * cost stays small.
 */
#define _GNU_SOURCE
#define STALL_SECONDS 2
#define SETUP_SECONDS 30
#define GROUP 200
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum protocol { PCP, MQTT, NATS };
enum mode { PAIRS, FAN, HOLD };

struct connection {
    int fd;
    int number;
    int is_receiver;
    long under_way;       /* of the sender: messages sent and not seen arriving */
    long unanswered;      /* of the sender: messages sent that the stream has not answered */
    size_t kept;          /* bytes of an unfinished frame */
    size_t stream_kept;   /* bytes of an unfinished packet inside frames (MQTT, NATS) */
    unsigned char *rest;
    unsigned char *stream;
    unsigned char *frame; /* of the sender: the frame to send, its id is changed each time */
    size_t frame_bytes;
    size_t id_offset;
};

static enum protocol protocol;
static int has_answers;
static enum mode mode;
static int count, window;
static size_t message_bytes;
static struct connection *connections;
static int total;
static long deliveries, sent, answers;
static uint64_t next_id; /* begins at the time, so that no round repeats the bytes of another */
static const size_t BUFFER = 1 << 18;

static void die(const char *what) {
    fprintf(stderr, "pcp_load: %s: %s\n", what, errno ? strerror(errno) : "refused");
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void send_all(int fd, const unsigned char *data, size_t size) {
    while (size) {
        ssize_t n = send(fd, data, size, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            struct pollfd p = {fd, POLLOUT, 0};
            poll(&p, 1, 1000);
            continue;
        }
        if (n <= 0) die("send");
        data += n;
        size -= (size_t)n;
    }
}

/* A masked binary frame around a payload; returns its size and where the payload begins. */
static size_t make_frame(unsigned char *out, const unsigned char *payload, size_t size, size_t *payload_at) {
    size_t n = 0;
    out[n++] = 0x82;
    if (size < 126) {
        out[n++] = (unsigned char)(0x80 | size);
    } else if (size < 65536) {
        out[n++] = 0x80 | 126;
        out[n++] = (unsigned char)(size >> 8);
        out[n++] = (unsigned char)size;
    } else {
        out[n++] = 0x80 | 127;
        for (int shift = 56; shift >= 0; shift -= 8) out[n++] = (unsigned char)((uint64_t)size >> shift);
    }
    memset(out + n, 0, 4);
    n += 4;
    if (payload_at) *payload_at = n;
    memcpy(out + n, payload, size);
    return n + size;
}

static void send_frame(int fd, const unsigned char *payload, size_t size) {
    unsigned char *out = malloc(size + 16);
    size_t n = make_frame(out, payload, size, NULL);
    send_all(fd, out, n);
    free(out);
}

/* Waits for one whole frame; for setting up only. */
static size_t read_frame(int fd, unsigned char *out, size_t limit) {
    unsigned char head[2], more[8];
    if (recv(fd, head, 2, MSG_WAITALL) != 2) die("no answer");
    size_t size = head[1] & 127;
    if (size == 126) {
        if (recv(fd, more, 2, MSG_WAITALL) != 2) die("frame");
        size = (size_t)more[0] << 8 | more[1];
    } else if (size == 127) {
        die("frame too large");
    }
    if (size > limit || recv(fd, out, size, MSG_WAITALL) != (ssize_t)size) die("frame");
    if ((head[0] & 15) == 8) die("closed by the broker");
    return size;
}

static size_t pcp_message(unsigned char *out, const char *id, const char *type, const char *target, const char *sender,
                          size_t bytes) {
    char envelope[1024];
    int n = snprintf(envelope, sizeof envelope,
                     "{\"id\":\"%s\",\"message_type\":\"%s\",\"expires\":\"2099-01-01T00:00:00.000000Z\","
                     "\"targets\":[\"%s\"],\"sender\":\"%s\"}", id, type, target, sender);
    size_t at = 0;
    out[at++] = 1;
    out[at++] = 1;
    for (int shift = 24; shift >= 0; shift -= 8) out[at++] = (unsigned char)(n >> shift);
    memcpy(out + at, envelope, (size_t)n);
    at += (size_t)n;
    if (bytes > at + 5) {
        size_t data = bytes - at - 5;
        out[at++] = 2;
        for (int shift = 24; shift >= 0; shift -= 8) out[at++] = (unsigned char)(data >> shift);
        memset(out + at, 'x', data);
        at += data;
    }
    return at;
}

/* Setting up: each step is done for a whole group of connections before the next one, and ends by itself. */

static const char *kind_of(const struct connection *c) { return c->is_receiver ? "agent" : "controller"; }

static void open_one(struct connection *c, const struct sockaddr_in *address) {
    char request[512], path[64];
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    struct timeval limit = {SETUP_SECONDS, 0};
    if (c->fd < 0 || setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit)) die("socket");
    if (connect(c->fd, (const struct sockaddr *)address, sizeof *address)) die("connect");
    int one = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    snprintf(path, sizeof path, protocol == PCP ? "/pcp/%s" : "/", kind_of(c));
    int n = snprintf(request, sizeof request,
                     "GET %s HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                     "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n%s\r\n",
                     path, protocol == MQTT ? "Sec-WebSocket-Protocol: mqtt\r\n" : "");
    send_all(c->fd, (unsigned char *)request, (size_t)n);
}

static void await_upgrade(struct connection *c) {
    unsigned char buffer[8192];
    size_t have = 0;
    while (have < 4 || memcmp(buffer + have - 4, "\r\n\r\n", 4)) {
        if (have >= sizeof buffer || recv(c->fd, buffer + have, 1, 0) != 1) die("upgrade");
        have++;
    }
    errno = 0;
    if (!memmem(buffer, have, " 101 ", 5)) die("upgrade");
}

static void introduce(struct connection *c) {
    unsigned char buffer[1024];
    if (protocol == PCP) {
        char id[37], uri[64];
        snprintf(id, sizeof id, "00000000-0000-4000-8000-%012x", (unsigned)c->number);
        snprintf(uri, sizeof uri, "pcp://host%06d.example.com/%s", c->number, kind_of(c));
        size_t size = pcp_message(buffer, id, "http://puppetlabs.com/associate_request", "pcp:///server", uri, 0);
        send_frame(c->fd, buffer, size);
    } else if (protocol == MQTT) {
        unsigned char hello[64] = {0x10, 0, 0, 4, 'M', 'Q', 'T', 'T', 4, 2, 0, 0};
        int length = snprintf((char *)hello + 14, 32, "c%d", c->number);
        hello[13] = (unsigned char)length;
        hello[1] = (unsigned char)(12 + length);
        send_frame(c->fd, hello, (size_t)(14 + length));
    } else {
        send_frame(c->fd, (const unsigned char *)"CONNECT {\"verbose\":false}\r\n", 27);
    }
}

static void await_welcome(struct connection *c) {
    unsigned char buffer[8192];
    size_t size = read_frame(c->fd, buffer, sizeof buffer);
    errno = 0;
    if (protocol == PCP && !memmem(buffer, size, "\"success\":true", 14)) die("association");
}

static void subscribe(struct connection *c) {
    if (protocol == MQTT && c->is_receiver) {
        unsigned char packet[64] = {0x82, 0, 0, 1, 0};
        int topic = snprintf((char *)packet + 6, 40, mode == FAN ? "all" : "t%d", c->number);
        packet[5] = (unsigned char)topic;
        packet[6 + topic] = 0;
        packet[1] = (unsigned char)(5 + topic);
        send_frame(c->fd, packet, (size_t)(7 + topic));
    } else if (protocol == NATS) {
        char text[128];
        int length = 0;
        if (c->is_receiver)
            length = snprintf(text, sizeof text, mode == FAN ? "SUB all 1\r\n" : "SUB t.%d 1\r\n", c->number);
        else if (has_answers)
            length = snprintf(text, sizeof text, "SUB i%d 1\r\n", c->number);
        length += snprintf(text + length, sizeof text - (size_t)length, "PING\r\n");
        send_frame(c->fd, (unsigned char *)text, (size_t)length);
    }
}

static void await_subscribed(struct connection *c) {
    unsigned char buffer[8192];
    if (protocol == MQTT && c->is_receiver) {
        read_frame(c->fd, buffer, sizeof buffer);
    } else if (protocol == NATS) {
        size_t size;
        do size = read_frame(c->fd, buffer, sizeof buffer);
        while (!memmem(buffer, size, "PONG", 4));
    }
}

static void connect_all(const struct sockaddr_in *address) {
    void (*steps[])(struct connection *) = {await_upgrade, introduce, await_welcome, subscribe, await_subscribed};
    for (int first = 0; first < total; first += GROUP) {
        int end = first + GROUP < total ? first + GROUP : total;
        for (int i = first; i < end; i++) open_one(&connections[i], address);
        for (size_t step = 0; step < sizeof steps / sizeof *steps; step++)
            for (int i = first; i < end; i++) steps[step](&connections[i]);
    }
}

static void prepare_sender(struct connection *c, int receiver) {
    unsigned char *payload = malloc(message_bytes + 2048);
    size_t size, id_at = 0;
    char target[64], sender[64];
    if (protocol == PCP) {
        snprintf(sender, sizeof sender, "pcp://host%06d.example.com/controller", c->number);
        if (mode == FAN) snprintf(target, sizeof target, "pcp://*/agent");
        else snprintf(target, sizeof target, "pcp://host%06d.example.com/agent", receiver);
        size = pcp_message(payload, "00000000-0000-4000-8000-000000000000", "http://example.com/load", target, sender,
                           message_bytes);
        id_at = 6 + 7 + 20; /* behind the chunk header, {"id":" and 20 fixed digits and hyphens */
    } else if (protocol == MQTT) {
        int topic = mode == FAN ? snprintf(target, sizeof target, "all") : snprintf(target, sizeof target, "t%d", receiver);
        size_t body = 2 + (size_t)topic + message_bytes, at = 1;
        payload[0] = 0x30;
        for (size_t left = body; ; left >>= 7) {
            payload[at++] = (unsigned char)((left & 127) | (left > 127 ? 128 : 0));
            if (left <= 127) break;
        }
        payload[at++] = 0;
        payload[at++] = (unsigned char)topic;
        memcpy(payload + at, target, (size_t)topic);
        at += (size_t)topic;
        id_at = at;
        memset(payload + at, 'x', message_bytes);
        size = at + message_bytes;
    } else {
        char inbox[32] = "";
        if (has_answers) snprintf(inbox, sizeof inbox, "i%d ", c->number);
        if (mode == FAN) snprintf(target, sizeof target, "all");
        else snprintf(target, sizeof target, "t.%d", receiver);
        int head = snprintf((char *)payload, 128, "PUB %s %s%zu\r\n", target, inbox, message_bytes);
        id_at = (size_t)head;
        memset(payload + head, 'x', message_bytes);
        memcpy(payload + head + message_bytes, "\r\n", 2);
        size = (size_t)head + message_bytes + 2;
    }
    c->frame = malloc(size + 16);
    size_t payload_at;
    c->frame_bytes = make_frame(c->frame, payload, size, &payload_at);
    c->id_offset = payload_at + id_at;
    free(payload);
}

static void send_next(struct connection *c) {
    static const char digits[] = "0123456789abcdef";
    uint64_t id = next_id++;
    for (int i = 15; i >= 0; i--, id >>= 4) {
        if (protocol == PCP && i == 3) { /* the hyphen inside the last sixteen digits */
            c->frame[c->id_offset + 3] = '-';
            id <<= 4;
            continue;
        }
        c->frame[c->id_offset + (size_t)i] = (unsigned char)digits[id & 15];
    }
    send_all(c->fd, c->frame, c->frame_bytes);
    c->under_way++;
    c->unanswered += has_answers;
    sent++;
}

static int may_send(const struct connection *sender) {
    if (sender->unanswered >= window) return 0;
    return mode == PAIRS ? sender->under_way < window : deliveries > (sent - window) * count;
}

static void progress(struct connection *c, long number, int is_sending) {
    struct connection *sender = !c->is_receiver ? c : mode == PAIRS ? c - 1 : &connections[0];
    if (c->is_receiver) {
        deliveries += number;
        sender->under_way -= number;
    } else {
        answers += number;
        sender->unanswered -= number;
    }
    while (is_sending && may_send(sender)) send_next(sender);
}

static int is_own_type(const unsigned char *data, size_t size) {
    return memmem(data, size, "example.com/load", 16) != NULL;
}

/* Messages inside the packets of MQTT and NATS, which need not end where a frame ends. */
static long count_packets(struct connection *c, const unsigned char *data, size_t size) {
    if (c->stream_kept + size > BUFFER) die("packet too large");
    memcpy(c->stream + c->stream_kept, data, size);
    size_t have = c->stream_kept + size, at = 0;
    long found = 0;
    while (at < have) {
        unsigned char *p = c->stream + at;
        size_t left = have - at, used;
        if (protocol == MQTT) {
            size_t length = 0, i = 1;
            int shift = 0;
            for (; i < left && i < 5; i++, shift += 7) {
                length |= (size_t)(p[i] & 127) << shift;
                if (p[i] < 128) break;
            }
            if (i >= left) break;
            used = i + 1 + length;
            if (used > left) break;
            if ((p[0] >> 4) == 3) found++;
        } else {
            unsigned char *end = memmem(p, left, "\r\n", 2);
            if (!end) break;
            used = (size_t)(end - p) + 2;
            if (!memcmp(p, "MSG ", 4)) {
                unsigned char *space = memrchr(p, ' ', (size_t)(end - p));
                used += (size_t)atol((char *)space + 1) + 2;
                if (used > left) break;
                if (!c->is_receiver && memmem(end, used - (size_t)(end - p), "\"error\"", 7)) die("not stored");
                found++;
            } else if (!memcmp(p, "PING", 4)) {
                send_frame(c->fd, (const unsigned char *)"PONG\r\n", 6);
            } else if (!memcmp(p, "-ERR", 4)) {
                fprintf(stderr, "pcp_load: %.*s\n", (int)(end - p), p);
                exit(1);
            }
        }
        at += used;
    }
    memmove(c->stream, c->stream + at, have - at);
    c->stream_kept = have - at;
    return found;
}

static void take_frames(struct connection *c, int is_sending) {
    ssize_t n = recv(c->fd, c->rest + c->kept, BUFFER - c->kept, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    errno = 0;
    if (n <= 0) die("connection closed by the broker");
    size_t have = c->kept + (size_t)n, at = 0;
    long found = 0;
    while (have - at >= 2) {
        unsigned char *p = c->rest + at;
        size_t size = p[1] & 127, head = 2;
        if (size == 126) {
            if (have - at < 4) break;
            size = (size_t)p[2] << 8 | p[3];
            head = 4;
        } else if (size == 127) {
            if (have - at < 10) break;
            size = 0;
            for (int i = 2; i < 10; i++) size = size << 8 | p[i];
            head = 10;
        }
        if (head + size > BUFFER) die("frame too large");
        if (have - at < head + size) break;
        int opcode = p[0] & 15;
        if (opcode == 9) {
            unsigned char pong[160];
            size_t n2 = make_frame(pong, p + head, size, NULL);
            pong[0] = 0x8a;
            send_all(c->fd, pong, n2);
        } else if (opcode == 8) {
            errno = 0;
            die("closed by the broker");
        } else if (opcode <= 2) {
            if (protocol == PCP) found += c->is_receiver && is_own_type(p + head, size);
            else found += count_packets(c, p + head, size);
        }
        at += head + size;
    }
    memmove(c->rest, c->rest + at, have - at);
    c->kept = have - at;
    if (found) progress(c, found, is_sending);
}

static void run(int epoll, double seconds) {
    struct epoll_event events[512];
    double start = now(), end = start + seconds, last_progress = start;
    deliveries = sent = answers = 0; /* what an earlier run lost is not waited for again */
    for (int i = 0; i < total; i++) connections[i].under_way = connections[i].unanswered = 0;
    for (int i = 0; i < total; i++)
        while (mode != HOLD && !connections[i].is_receiver && may_send(&connections[i])) send_next(&connections[i]);
    long expected;
    for (;;) {
        double t = now();
        int is_sending = t < end;
        expected = mode == FAN ? sent * count : sent;
        if (!is_sending && deliveries >= expected && (!has_answers || answers >= sent)) break;
        if (mode != HOLD && t - last_progress > STALL_SECONDS) break;
        long had = deliveries + answers;
        int n = epoll_wait(epoll, events, 512, 100);
        for (int i = 0; i < n; i++) take_frames(events[i].data.ptr, is_sending);
        if (deliveries + answers != had) last_progress = now();
    }
    long lost = expected > deliveries ? expected - deliveries : 0;
    printf("%ld %.6f %ld\n", deliveries, (lost ? last_progress : now()) - start, lost);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc != 8) {
        fprintf(stderr, "usage: pcp_load pcp|mqtt|nats|jetstream HOST PORT pairs|fan|hold COUNT WINDOW BYTES\n");
        return 2;
    }
    protocol = !strcmp(argv[1], "pcp") ? PCP : !strcmp(argv[1], "mqtt") ? MQTT : NATS;
    has_answers = !strcmp(argv[1], "jetstream");
    mode = !strcmp(argv[4], "pairs") ? PAIRS : !strcmp(argv[4], "fan") ? FAN : HOLD;
    count = atoi(argv[5]);
    window = atoi(argv[6]);
    message_bytes = (size_t)atoi(argv[7]);
    next_id = (uint64_t)time(NULL) << 24;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[3]))};
    if (inet_pton(AF_INET, argv[2], &address.sin_addr) != 1) die("host");
    total = mode == PAIRS ? 2 * count : mode == FAN ? count + 1 : count;
    connections = calloc((size_t)total, sizeof *connections);
    int epoll = epoll_create1(0);
    for (int i = 0; i < total; i++) {
        struct connection *c = &connections[i];
        c->number = i;
        c->is_receiver = mode == PAIRS ? i % 2 : mode == FAN ? i > 0 : 1;
    }
    connect_all(&address);
    for (int i = 0; i < total; i++) {
        struct connection *c = &connections[i];
        if (mode == HOLD) continue;
        c->rest = malloc(BUFFER);
        c->stream = malloc(BUFFER);
        if (!c->is_receiver) prepare_sender(c, i + 1);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event);
    }
    printf("ready\n");
    fflush(stdout);
    char line[64];
    double seconds;
    while (fgets(line, sizeof line, stdin) && sscanf(line, "go %lf", &seconds) == 1) run(epoll, seconds);
    return 0;
}
