/* fuzz_writer.c: any metadata and pieces for a writer; what it makes must read back, and what it
 * refuses must leave nothing.
 * SPDX-License-Identifier: Apache-2.0
 *
 * An input is a byte for the options, a byte for the size of pieces, two for the length of the
 * metadata, the metadata, and the payload. */
#include "bytes.h"
#include "kvc.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAD_BYTES 4

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* A defect ends the process in every build, so that it is not lost with assertions off. */
static void check(bool fine, const char *what)
{
    if (!fine) {
        (void)fprintf(stderr, "fuzz_writer: %s\n", what);
        abort();
    }
}

/* What a writer was given and what it made of it. */
struct made {
    uint8_t *data;
    size_t bytes;
    unsigned writes;
    unsigned finishes;
    unsigned discards;
    unsigned fail_at; /* the write that fails, 0: none */
};

static int take(void *context, const void *data, size_t bytes)
{
    struct made *made = context;
    made->writes++;
    if (made->writes == made->fail_at) {
        return EIO;
    }
    uint8_t *larger = realloc(made->data, made->bytes + bytes + 1);
    check(larger != NULL, "no memory");
    made->data = larger;
    memcpy(larger + made->bytes, data, bytes);
    made->bytes += bytes;
    return 0;
}

static int finish(void *context)
{
    struct made *made = context;
    made->finishes++;
    return 0;
}

static void discard(void *context)
{
    struct made *made = context;
    made->discards++;
}

struct input {
    struct kvc_writer_options options;
    uint64_t piece;
    const char *metadata;
    size_t metadata_bytes;
    const uint8_t *payload;
    size_t payload_bytes;
};

static void check_error(const struct kvc_error *error, enum kvc_status status)
{
    check(error->status == status && error->message[0] != '\0', "a refusal without a reason");
}

static enum kvc_status write_all(const struct input *input, struct made *made, char **ret_text,
                                 uint64_t *ret_text_bytes)
{
    struct kvc_sink sink = KVC_SINK_INIT;
    struct kvc_writer *writer = NULL;
    struct kvc_error error = KVC_ERROR_INIT;
    sink.context = made;
    sink.write = take;
    sink.finish = finish;
    sink.discard = discard;
    enum kvc_status status = kvc_writer_create_sink(&sink, input->metadata, input->metadata_bytes,
                                                    &input->options, &writer, &error);
    if (status != KVC_OK) {
        check_error(&error, status);
        check(writer == NULL && made->finishes == 0, "a refused writer");
        check(made->discards == (made->writes > 0), "a sink is discarded once it was written to");
        return status;
    }
    const char *text = kvc_writer_metadata(writer, ret_text_bytes);
    *ret_text = malloc((size_t)*ret_text_bytes + 1);
    check(*ret_text != NULL, "no memory");
    memcpy(*ret_text, text, (size_t)*ret_text_bytes);
    for (size_t at = 0; status == KVC_OK && at < input->payload_bytes;) {
        uint64_t left = input->payload_bytes - at;
        uint64_t count = input->piece == 0 || input->piece > left ? left : input->piece;
        status = kvc_writer_write(writer, input->payload + at, count, &error);
        at += (size_t)count;
    }
    if (status == KVC_OK) {
        status = kvc_writer_finish(writer, NULL, &error);
    }
    if (status != KVC_OK) {
        check_error(&error, status);
        check(status == KVC_E_LENGTH || (status == KVC_E_IO && made->fail_at > 0),
              "good metadata fail otherwise than by the length");
    }
    kvc_writer_free(writer);
    check(made->finishes == (status == KVC_OK) && made->discards == (status != KVC_OK),
          "a sink is finished or discarded, once");
    return status;
}

/* The file verifies, and holds the metadata and the payload. */
static void check_made(const struct input *input, const struct made *made, const char *text,
                       uint64_t text_bytes)
{
    struct kvc_reader_options options = KVC_READER_OPTIONS_INIT;
    struct kvc_error error = KVC_ERROR_INIT;
    struct kvc_reader *reader = NULL;
    struct kvc_work work = KVC_WORK_INIT;
    struct kvc_info info = KVC_INFO_INIT;
    uint64_t found_bytes = 0;
    work.threads = 1;
    options.key = input->options.key;
    options.expected_identity = text;
    options.expected_identity_bytes = (size_t)text_bytes;
    check(kvc_reader_open_memory(made->data, made->bytes, &options, &reader, &error) == KVC_OK,
          error.message);
    check(kvc_reader_verify(reader, &work, NULL, NULL, &error) == KVC_OK, error.message);
    check(kvc_reader_info(reader, &info, NULL) == KVC_OK, "no facts");
    check(info.payload_bytes == input->payload_bytes, "another payload length");
    const char *found = kvc_reader_metadata(reader, &found_bytes);
    check(found_bytes == text_bytes && memcmp(found, text, (size_t)text_bytes) == 0,
          "other metadata");
    uint8_t *payload = malloc(input->payload_bytes);
    check(payload != NULL, "no memory");
    check(kvc_reader_read_payload(reader, &work, payload, input->payload_bytes, NULL) == KVC_OK,
          "the payload cannot be read");
    check(memcmp(payload, input->payload, input->payload_bytes) == 0, "another payload");
    free(payload);
    kvc_reader_free(reader);
}

/* The stored metadata give the same file once more, and a sink that fails is discarded. */
static void check_again(const struct input *input, const struct made *made, const char *text,
                        uint64_t text_bytes, unsigned fail_at)
{
    struct input again = *input;
    struct made copy = {0};
    char *same = NULL;
    uint64_t same_bytes = 0;
    again.metadata = text;
    again.metadata_bytes = (size_t)text_bytes;
    again.piece = 0;
    check(write_all(&again, &copy, &same, &same_bytes) == KVC_OK, "stored metadata are refused");
    check(copy.bytes == made->bytes && memcmp(copy.data, made->data, copy.bytes) == 0,
          "the same content gives another file");
    free(copy.data);
    free(same);
    same = NULL;
    struct made broken = {.fail_at = 1 + fail_at % made->writes};
    check(write_all(input, &broken, &same, &same_bytes) == KVC_E_IO, "a failed write is lost");
    free(broken.data);
    free(same);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const uint32_t aligns[] = {0, 64, 4096, 1};
    static const uint8_t key[KVC_DIGEST_BYTES] = {1};
    struct input input = {.options = KVC_WRITER_OPTIONS_INIT};
    struct made made = {0};
    char *text = NULL;
    uint64_t text_bytes = 0;
    if (bytes < HEAD_BYTES) {
        return 0;
    }
    input.options.align_bytes = aligns[data[0] & 3];
    input.options.key = (data[0] & 4) != 0 ? key : NULL;
    input.options.work.threads = (data[0] & 8) != 0 ? 2 : 1;
    input.piece = data[1];
    input.metadata_bytes = kvci_load16(data + 2);
    if (input.metadata_bytes > bytes - HEAD_BYTES) {
        input.metadata_bytes = bytes - HEAD_BYTES;
    }
    input.metadata = (const char *)data + HEAD_BYTES;
    input.payload = data + HEAD_BYTES + input.metadata_bytes;
    input.payload_bytes = bytes - HEAD_BYTES - input.metadata_bytes;
    input.options.payload_bytes = input.payload_bytes;
    if (write_all(&input, &made, &text, &text_bytes) == KVC_OK) {
        check_made(&input, &made, text, text_bytes);
        check_again(&input, &made, text, text_bytes, data[0] >> 4);
    }
    free(made.data);
    free(text);
    return 0;
}
