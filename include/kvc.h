/* kvc.h: the public interface of libkvc, which reads and writes KVC1 containers.
 * SPDX-License-Identifier: Apache-2.0
 *
 * A KVC1 file holds the key/value cache of a transformer model: canonical JSON metadata that says
 * which model it belongs to, the raw little-endian tensors, and BLAKE3 digests that prove every
 * byte. docs/FORMAT.md specifies it byte by byte.
 *
 * Rules that hold for every function here:
 *
 *   Errors      A function that can fail returns `enum kvc_status`, 0 for success. Its last
 *               argument is a `struct kvc_error *`, which may be NULL; on failure it is filled in.
 *               On failure outputs are untouched, except caller's data buffers, which are zeroed
 *               once reading into them has begun.
 *   Order       The handle comes first, then inputs, then outputs named `ret_`, then the error.
 *   Structs     Structs that the caller makes begin with their `size` and are made with their
 *               `_INIT` macro, so that later versions can add members at the end.
 *   Ownership   What a handle returns by pointer belongs to the handle and lives as long as it
 *               does, unless the function says otherwise. Every `_free` accepts NULL.
 *   Threads     Distinct handles are independent. One reader may be used from many threads at once,
 *               except for kvc_reader_free. A writer belongs to one thread at a time. The library
 *               starts threads only inside a call and joins them before that call returns.
 *   Process     The library never prints, exits, aborts on input, installs signal handlers, changes
 *               the locale or the umask, and holds no state outside its handles.
 *   Text        Strings are UTF-8. Sizes and offsets are bytes in `uint64_t`.
 */
#ifndef KVC_H
#define KVC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(KVC_STATIC) || !defined(__GNUC__)
#define KVC_API
#else
#define KVC_API __attribute__((visibility("default")))
#endif

#define KVC_VERSION "0.1.0"

/* Bytes of a root, a digest, a tag and a key. */
#define KVC_DIGEST_BYTES 32

/* Characters of a root in text, `kvc1:` and 64 hexadecimal digits, and the final zero. */
#define KVC_ROOT_TEXT_BYTES 70

/* ---- Status -------------------------------------------------------------------------------- */

/* The numbers are pinned for ever. Decades: 1x the caller's mistake, 2x the environment, 3x not a
 * file that this version can judge, 40..44 an incomplete file, 45..49 corrupt structure, 5x bytes
 * that do not match their digest, 6x a whole file that is not the one that was asked for. */
enum kvc_status {
    KVC_OK = 0,

    KVC_E_USAGE = 10,     /* a NULL that is not allowed, a call out of order */
    KVC_E_OPTION = 11,    /* an option struct with a wrong size or value */
    KVC_E_RANGE = 12,     /* a byte range outside the tensor, a tensor index that does not exist */
    KVC_E_NOT_FOUND = 13, /* no tensor or field of that name */
    KVC_E_CANCELLED = 14, /* the progress callback asked to stop */
    KVC_E_LENGTH = 15,    /* a writer was given fewer or more payload bytes than the metadata say */

    KVC_E_IO = 20,          /* the operating system refused; `sys_errno` says why */
    KVC_E_NO_MEMORY = 21,   /* the allocator returned NULL */
    KVC_E_NO_SPACE = 22,    /* the file system or the quota is full, or the file too large for it */
    KVC_E_CHANGED = 23,     /* the file became shorter while it was open */
    KVC_E_NOT_REGULAR = 24, /* a folder, FIFO, socket or device instead of a file */
    KVC_E_LIMIT = 25,       /* a limit that the caller set in the options */
    KVC_E_NOT_MAPPABLE = 26, /* the source is not memory or a file that can be mapped */

    KVC_E_FOREIGN = 30,  /* another format, named in the message where it is known */
    KVC_E_VERSION = 31,  /* a KVC container of another major version */
    KVC_E_FEATURE = 32,  /* an incompatible feature bit, or an algorithm, that is not known here */
    KVC_E_MANIFEST = 33, /* a manifest version that is not known here */
    KVC_E_EMPTY = 34,    /* a file of zero bytes */
    KVC_E_MANGLED = 35,  /* a KVC1 magic changed by a text-mode transfer */

    KVC_E_TRUNCATED = 40,  /* shorter than its header says, or cut inside the header */
    KVC_E_UNFINISHED = 41, /* the full size, but the footer was never written */

    KVC_E_STRUCTURE = 45, /* header fields, reserved bytes or sizes that contradict each other */
    KVC_E_TRAILING = 46,  /* longer than its header says */
    KVC_E_JSON = 47,      /* the metadata are not canonical JSON */
    KVC_E_SCHEMA = 48,    /* a metadata member is missing, unknown, or has a wrong type or value */
    KVC_E_GEOMETRY = 49,  /* metadata members that contradict each other or the header */

    KVC_E_HEADER_CHECK = 50, /* the header does not match its check value */
    KVC_E_FOOTER_CHECK = 51, /* the footer does not match its check value, or its end magic */
    KVC_E_ROOT = 52,         /* metadata and tensor digests do not give the root in the footer */
    KVC_E_ROW = 53,          /* a tensor's chunk values do not combine to its digest */
    KVC_E_CHUNK = 54,        /* payload bytes that do not match their digest */
    KVC_E_PADDING = 55,      /* bytes that must be zero are not */

    KVC_E_IDENTITY = 60,      /* the metadata differ from the identity that was expected */
    KVC_E_EXPECTED_ROOT = 61, /* the root differs from the one that was expected */
    KVC_E_NO_TAG = 62,        /* a key was given, and the file carries no tag */
    KVC_E_TAG = 63            /* the tag was not made with this key */
};

/* Returns the status' name without its prefix, in lower case: "chunk", "foreign"; never NULL. */
KVC_API const char *kvc_status_name(enum kvc_status status);

/* Returns the class of a status: "ok", "caller", "environment", "unsupported", "incomplete",
 * "corrupt", "digest" or "identity"; never NULL. */
KVC_API const char *kvc_status_class(enum kvc_status status);

/* `offset` of an error that has no place in the file. */
#define KVC_NO_OFFSET UINT64_MAX

/* One failure. Texts are always terminated, cut where they are too long, and may hold any UTF-8
 * that a file contains: escape control characters before you print them on a terminal. */
struct kvc_error {
    size_t size;
    enum kvc_status status;
    int sys_errno;             /* errno of the call that failed, or 0 */
    uint64_t offset;           /* byte in the file, or KVC_NO_OFFSET */
    uint64_t difference_count; /* identity: how many fields differ */
    char field[160];           /* the metadata path, tensor name or header field concerned, or "" */
    char expected[160];        /* what would have been right, or "" */
    char found[160];           /* what was there, or "" */
    char message[640];         /* one whole sentence, with all of the above and what to do */
};

#define KVC_ERROR_INIT                                                                             \
    {                                                                                              \
        sizeof(struct kvc_error), KVC_OK, 0, KVC_NO_OFFSET, 0, "", "", "", ""                      \
    }

/* Returns the version of the library that is running, KVC_VERSION at its build. */
KVC_API const char *kvc_version(void);

/* Returns the BLAKE3 kernel in use: "avx512", "avx2", "sse41", "neon" or "portable". The
 * environment variable KVC_BLAKE3_KERNEL forces one that the processor has; it is for tests. */
KVC_API const char *kvc_kernel(void);

/* ---- What options share -------------------------------------------------------------------- */

/* The library's memory. `allocate` returns `bytes` bytes aligned for any type, or NULL; `release`
 * takes back what it returned. Both may be called from several threads at once. */
struct kvc_allocator {
    void *(*allocate)(void *context, size_t bytes);
    void (*release)(void *context, void *block);
    void *context;
};

/* Called now and then, always in the thread that called the library, with the payload bytes done
 * and in all. Return 0 to go on, anything else to cancel: the call then ends with
 * KVC_E_CANCELLED, and a writer that was cancelled can only be freed. A writer whose payload has
 * no known length reports as the total what it was given so far; every writer reports once more
 * before it publishes. */
typedef int (*kvc_progress_fn)(void *context, uint64_t done_bytes, uint64_t total_bytes);

/* How a long call does its work. Pass NULL for the defaults: all processors that the process may
 * use, at most 16, and no progress. */
struct kvc_work {
    size_t size;
    uint32_t threads; /* 0: chosen by the library; 1: none are started; at most 256 */
    kvc_progress_fn progress;
    void *progress_context;
};

#define KVC_WORK_INIT                                                                              \
    {                                                                                              \
        sizeof(struct kvc_work), 0, NULL, NULL                                                     \
    }

/* ---- Identity ------------------------------------------------------------------------------ */

/* One differing member. `field` is its path (`rope_theta`, `user.tenant`). `expected` and `found`
 * are JSON, not terminated; `found` is NULL where the file has no such member. The texts live
 * during the call only. Members come in the order of their names. */
typedef void (*kvc_difference_fn)(void *context, const char *field, const char *expected,
                                  size_t expected_bytes, const char *found, size_t found_bytes);

/* ---- Reader -------------------------------------------------------------------------------- */

/* A container that was opened and whose header, metadata, tensor digests and footer are proven. */
struct kvc_reader;

/* What may be asked of a reader when it is opened. Everything is optional. */
struct kvc_reader_options {
    size_t size;
    const struct kvc_allocator *allocator; /* must outlive the reader and its views */
    const uint8_t *expected_root;          /* 32 bytes: refuse any other content */
    const uint8_t *key;                    /* 32 bytes: require a tag made with this key */
    const char *expected_identity; /* JSON object in any spelling; see kvc_reader_identity */
    size_t expected_identity_bytes;
    kvc_difference_fn on_difference; /* called once for each difference at opening */
    void *difference_context;
    uint64_t max_file_bytes;     /* 0: what the format allows, 2^53 - 1 */
    uint64_t max_metadata_bytes; /* 0: what the format allows, 16 MiB */
    uint32_t max_tensor_count;   /* 0: what the format allows, 65,536 */
};

#define KVC_READER_OPTIONS_INIT                                                                    \
    {                                                                                              \
        sizeof(struct kvc_reader_options), NULL, NULL, NULL, NULL, 0, NULL, NULL, 0, 0, 0          \
    }

/* A place to read from that is neither a file nor memory: an object store, an archive member.
 * `read_at` fills the buffer with exactly `bytes` bytes from `offset` and returns 0, or returns an
 * errno value; it is called from several threads at once. `close` is called once, by
 * kvc_reader_free, or when opening fails; it may be NULL. It is not called when this struct or a
 * pointer argument is refused. */
struct kvc_source {
    size_t size;
    void *context;
    uint64_t file_bytes;
    int (*read_at)(void *context, void *buffer, size_t bytes, uint64_t offset);
    void (*close)(void *context);
};

#define KVC_SOURCE_INIT                                                                            \
    {                                                                                              \
        sizeof(struct kvc_source), NULL, 0, NULL, NULL                                             \
    }

/* Opens a container. Cost and memory depend on the metadata and the number of tensors, never on
 * the size of the payload: at most 4 times the metadata, 128 bytes per tensor, and 64 KiB. An
 * expected identity adds its own size a few times, while it is compared.
 *
 * Checked in this order: size, header, footer, padding, root, tag, JSON, schema, geometry, digests
 * of tensors without bytes, identity.
 * What follows is therefore certain: the metadata are those that the root names, and the payload
 * has the size that they need. Payload bytes are proven when they are read or mapped.
 *
 * `path` is opened for reading without waiting (a FIFO cannot hang the call); symbolic links are
 * followed. `options` may be NULL. */
KVC_API enum kvc_status kvc_reader_open_path(const char *path,
                                             const struct kvc_reader_options *options,
                                             struct kvc_reader **ret_reader,
                                             struct kvc_error *error);

/* The same on an open file descriptor, which is duplicated: the caller keeps its own. Its file
 * position is neither used nor moved. */
KVC_API enum kvc_status kvc_reader_open_fd(int fd, const struct kvc_reader_options *options,
                                           struct kvc_reader **ret_reader, struct kvc_error *error);

/* The same on memory that must stay as it is until the reader and all its views are freed. */
KVC_API enum kvc_status kvc_reader_open_memory(const void *data, uint64_t data_bytes,
                                               const struct kvc_reader_options *options,
                                               struct kvc_reader **ret_reader,
                                               struct kvc_error *error);

/* The same on a source of the caller's own. The struct is copied. */
KVC_API enum kvc_status kvc_reader_open_source(const struct kvc_source *source,
                                               const struct kvc_reader_options *options,
                                               struct kvc_reader **ret_reader,
                                               struct kvc_error *error);

/* Closes the source. Views that came from the reader stay valid. */
KVC_API void kvc_reader_free(struct kvc_reader *reader);

/* The facts of a file. */
struct kvc_info {
    size_t size;
    uint8_t root[KVC_DIGEST_BYTES];
    int has_tag;     /* 1 when the file carries a tag, checked or not */
    int tag_checked; /* 1 when a key was given and the tag was made with it */
    uint32_t version_major;
    uint32_t version_minor;
    uint64_t incompat;  /* feature bits */
    uint64_t ro_compat; /* a bit that is not known here forbids rewriting the file */
    uint64_t compat;
    uint64_t file_bytes;
    uint64_t metadata_bytes;
    uint64_t payload_offset;   /* where the payload begins in the file */
    uint64_t payload_span;     /* payload bytes in the file, gaps between tensors included */
    uint64_t payload_bytes;    /* sum of the tensors' bytes: the logical payload */
    uint64_t chunk_count;      /* grid chunks of 64 KiB in all tensors */
    uint32_t align_bytes;      /* 1, 64 or 4096 */
    uint32_t tensor_count;     /* tensors in the manifest; 0 for an opaque payload */
    uint32_t manifest_version; /* 0 when there is no manifest */
    uint32_t layers;
    uint32_t kv_heads;        /* 0 where the metadata say null, as manifest version 2 may */
    uint32_t head_dim;        /* the same */
    uint32_t batch_size;      /* 0 when there is no manifest */
    uint64_t sequence_start;  /* tokens before the first one held */
    uint64_t sequence_length; /* tokens */
    double rope_theta;
    const char *dtype; /* "f16", "bf16", "f32", "i8" or "u8"; in manifest version 2 any of the
                          format's, and "" where the metadata say null */
};

#define KVC_INFO_INIT                                                                              \
    {                                                                                              \
        .size = sizeof(struct kvc_info)                                                            \
    }

/* Fills in the facts of an open file. `ret_info->size` must be set, as KVC_INFO_INIT does. */
KVC_API enum kvc_status kvc_reader_info(const struct kvc_reader *reader, struct kvc_info *ret_info,
                                        struct kvc_error *error);

/* Returns the metadata, canonical JSON, not terminated. */
KVC_API const char *kvc_reader_metadata(const struct kvc_reader *reader, uint64_t *ret_bytes);

/* Finds a top-level member of the metadata: `ret_json` is its value as canonical JSON, a string
 * with its quotes, not terminated. KVC_E_NOT_FOUND when there is none. */
KVC_API enum kvc_status kvc_reader_field(const struct kvc_reader *reader, const char *name,
                                         const char **ret_json, uint64_t *ret_bytes,
                                         struct kvc_error *error);

/* `layer` of a tensor that belongs to the cache and not to one of its layers. */
#define KVC_NO_LAYER UINT32_MAX

/* A tensor of the file. An opaque payload is one tensor with an empty name and rank 1, dtype u8.
 *
 * In manifest version 1 every layer has a key and a value, of one shape and dtype. In version 2
 * tensors differ, have a rank from 0 to 8, and may have no bytes at all: such a tensor is read and
 * mapped like any other, and nothing is handed out. What their axes mean, how quantised elements
 * are packed and which roles are aliases of others, the metadata say. */
struct kvc_tensor {
    size_t size;
    char name[128]; /* "layer.3.key", "cross.0.value", "layer.1.conv_state.0", "token_ids"; "" for
                          an opaque payload */
    const char *dtype; /* one of the names in docs/FORMAT.md, section 2 */
    const char *kind; /* its role: "key", "value", "conv_state", "packed_key", ...; "" for an opaque
                          payload */
    uint32_t layer;   /* its layer, counted from 0; in version 2 the index into the manifest's
                          `layers`, and KVC_NO_LAYER for a tensor of the cache as a whole */
    uint32_t rank;
    uint64_t shape[8]; /* elements; [batch, kv_heads, sequence, head_dim] in manifest version 1 */
    uint64_t offset;   /* bytes, in the logical payload: tensors packed without gaps */
    uint64_t
        file_offset; /* bytes, in the file; of a tensor without bytes, where that before ends */
    uint64_t tensor_bytes;
    uint64_t chunk_count;             /* grid chunks of 64 KiB */
    uint8_t digest[KVC_DIGEST_BYTES]; /* plain BLAKE3 of the tensor's bytes */
};

#define KVC_TENSOR_INIT                                                                            \
    {                                                                                              \
        .size = sizeof(struct kvc_tensor)                                                          \
    }

/* Fills in tensor `index`, counted from 0 in file order. An opaque payload is index 0. */
KVC_API enum kvc_status kvc_reader_tensor(const struct kvc_reader *reader, uint32_t index,
                                          struct kvc_tensor *ret_tensor, struct kvc_error *error);

/* Finds a tensor by name; the empty name finds an opaque payload. */
KVC_API enum kvc_status kvc_reader_find(const struct kvc_reader *reader, const char *name,
                                        size_t name_bytes, uint32_t *ret_index,
                                        struct kvc_error *error);

/* Copies bytes [start, start + bytes) of a tensor into `buffer` and proves them there: the digest
 * is computed over the buffer, so nobody can change them afterwards. Reads at most 64 KiB more
 * than asked for at either end. On failure the buffer is zeroed. */
KVC_API enum kvc_status kvc_reader_read(const struct kvc_reader *reader, uint32_t index,
                                        uint64_t start, uint64_t bytes, const struct kvc_work *work,
                                        void *buffer, struct kvc_error *error);

/* Copies and proves the whole logical payload: info.payload_bytes bytes, tensors packed. Gaps
 * between tensors are proven to be zero. `buffer_bytes` must be at least payload_bytes. */
KVC_API enum kvc_status kvc_reader_read_payload(const struct kvc_reader *reader,
                                                const struct kvc_work *work, void *buffer,
                                                uint64_t buffer_bytes, struct kvc_error *error);

/* A proven piece of a private mapping. It holds the mapping alive, after kvc_reader_free too. */
struct kvc_view;

/* Maps a tensor and proves it in place: no copy is made. The pages are private and writable: what
 * the caller writes there stays in this process and never reaches the file. All views of a reader
 * share one mapping, and each 64 KiB is proven once, when it is first handed out.
 *
 * This is the `mapped` level of guarantee. It is safe against writers that replace files, as this
 * library does. A process that writes into the same inode can still change pages that were not
 * touched yet, and one that truncates it makes access to the lost pages a SIGBUS; use
 * kvc_reader_read where such processes are possible. On memory the view lies in that memory, which
 * is the caller's own: it must not be written to. */
KVC_API enum kvc_status kvc_reader_map(const struct kvc_reader *reader, uint32_t index,
                                       const struct kvc_work *work, struct kvc_view **ret_view,
                                       struct kvc_error *error);

/* Maps and proves the payload from its first to its last byte, gaps included: info.payload_span
 * bytes. Without gaps, as by default in manifest version 1, that is the logical payload. */
KVC_API enum kvc_status kvc_reader_map_payload(const struct kvc_reader *reader,
                                               const struct kvc_work *work,
                                               struct kvc_view **ret_view, struct kvc_error *error);

/* Returns the view's first byte, and its length when `ret_bytes` is not NULL. */
KVC_API void *kvc_view_data(const struct kvc_view *view, uint64_t *ret_bytes);

/* Gives the view back; the mapping goes with its last view and its reader. Any thread may call. */
KVC_API void kvc_view_free(struct kvc_view *view);

/* Called for a damaged place, in file order, in the caller's thread. The error lives during the
 * call. Return 0 to hear of the next one, anything else to stop. */
typedef int (*kvc_failure_fn)(void *context, const struct kvc_error *failure);

/* Reads the whole file and proves every byte: chunk values, chunks and gaps. It looks at the file,
 * never at pages that a user of a view changed. Without `on_failure` it stops at the first damage;
 * with it, it goes on to the end, reports each damaged tensor or gap (the first bad chunk in it),
 * and returns the status of the first. Memory: for each thread 256 KiB and, while it is proven, the
 * row of the tensor at hand, 32 bytes per chunk; the metadata and tensor digests a second time; and
 * about 1 KiB for each damaged tensor that is reported. */
KVC_API enum kvc_status kvc_reader_verify(const struct kvc_reader *reader,
                                          const struct kvc_work *work, kvc_failure_fn on_failure,
                                          void *failure_context, struct kvc_error *error);

/* Compares the metadata with what the caller expects: a JSON object in any spelling. Every member
 * of it must be in the file and equal. Numbers compare by value, booleans are never numbers,
 * arrays compare whole, objects member by member; null is a value, and absence is a difference.
 * KVC_E_IDENTITY when anything differs; the error names as many fields as fit, and `on_difference`
 * (may be NULL) hears of every one. KVC_E_JSON or KVC_E_SCHEMA when the text is no JSON object. */
KVC_API enum kvc_status kvc_reader_identity(const struct kvc_reader *reader, const char *expected,
                                            size_t expected_bytes, kvc_difference_fn on_difference,
                                            void *difference_context, struct kvc_error *error);

/* ---- Writer -------------------------------------------------------------------------------- */

/* A container in the making. Nothing is visible before kvc_writer_finish has succeeded. */
struct kvc_writer;

/* How far a finished file has reached the disk. Atomicity does not depend on it. */
enum kvc_durability {
    KVC_DURABILITY_FULL = 0, /* the file and its name survive a power cut; the default */
    KVC_DURABILITY_FILE = 1, /* the bytes do; the name may be lost */
    KVC_DURABILITY_NONE = 2  /* as the operating system pleases */
};

/* `payload_bytes` of a writer whose opaque payload has a length that is not known yet. */
#define KVC_UNKNOWN_BYTES UINT64_MAX

struct kvc_writer_options {
    size_t size;
    const struct kvc_allocator *allocator; /* must outlive the writer */
    enum kvc_durability durability;
    uint32_t align_bytes;   /* 1: packed; 64 or 4096: each tensor starts at a multiple; 0: 64 for
                               manifest version 2, whose tensors differ in size, otherwise 1 */
    const uint8_t *key;     /* 32 bytes: adds a tag; not kept after finish */
    uint64_t payload_bytes; /* opaque payloads: the length, or KVC_UNKNOWN_BYTES */
    struct kvc_work work;   /* threads and progress of write and finish */
};

#define KVC_WRITER_OPTIONS_INIT                                                                    \
    {                                                                                              \
        sizeof(struct kvc_writer_options), NULL, KVC_DURABILITY_FULL, 0, NULL, KVC_UNKNOWN_BYTES,  \
            KVC_WORK_INIT                                                                          \
    }

/* A place to write to that is not a file. `write` takes all of the bytes, in order, and returns 0
 * or an errno value. `finish` makes the file visible; `discard` is called instead when it never
 * will be. Exactly one of the two is called, once; both may be NULL. */
struct kvc_sink {
    size_t size;
    void *context;
    int (*write)(void *context, const void *data, size_t bytes);
    int (*finish)(void *context);
    void (*discard)(void *context);
};

#define KVC_SINK_INIT                                                                              \
    {                                                                                              \
        sizeof(struct kvc_sink), NULL, NULL, NULL, NULL                                            \
    }

/* Starts a file that will appear at `path` when it is finished, in the place of any older one.
 * `metadata` is a JSON object in any spelling; it is judged as a reader would and stored in its
 * canonical spelling, and row-major strides are put where a dimension of size 1 has another one.
 * The payload's length follows from the manifest; for metadata without one it is given in the
 * options, or found out while writing. In errors about the metadata, offsets count in the text that
 * was given for KVC_E_JSON, and in its canonical spelling for the others.
 *
 * The metadata decide the file's minor version, the lowest that has all of their names, and its
 * feature bits: those for manifest version 2 and for `parent_root`.
 *
 * The file is made without a name where the system can do that (Linux, O_TMPFILE), else under a
 * temporary name in the same folder. A symbolic link at `path` is replaced, not followed. */
KVC_API enum kvc_status kvc_writer_create_path(const char *path, const char *metadata,
                                               size_t metadata_bytes,
                                               const struct kvc_writer_options *options,
                                               struct kvc_writer **ret_writer,
                                               struct kvc_error *error);

/* The same into a sink, which is written once from the first byte to the last. The payload's
 * length must be known. The struct is copied. A sink is not touched when the options or metadata
 * are refused. */
KVC_API enum kvc_status kvc_writer_create_sink(const struct kvc_sink *sink, const char *metadata,
                                               size_t metadata_bytes,
                                               const struct kvc_writer_options *options,
                                               struct kvc_writer **ret_writer,
                                               struct kvc_error *error);

/* Returns the metadata as they will be stored, canonical JSON, not terminated. */
KVC_API const char *kvc_writer_metadata(const struct kvc_writer *writer, uint64_t *ret_bytes);

/* Appends payload bytes: all tensors one after the other in manifest order, in pieces of any
 * length; tensor boundaries and gaps are the writer's business. The bytes must not change during
 * the call. After a failure the writer can only be freed. */
KVC_API enum kvc_status kvc_writer_write(struct kvc_writer *writer, const void *data,
                                         uint64_t bytes, struct kvc_error *error);

/* Completes the file and makes it visible. KVC_E_LENGTH when payload bytes are missing. On success
 * `ret_root`, which may be NULL, receives the 32 bytes of the root. On any failure the old file,
 * if there was one, is still in place - with one exception that the message names: when only the
 * last fsync of the folder fails, the new file is there, and may be lost by a power cut. */
KVC_API enum kvc_status kvc_writer_finish(struct kvc_writer *writer,
                                          uint8_t ret_root[KVC_DIGEST_BYTES],
                                          struct kvc_error *error);

/* Fills in the facts of the file that was just finished, as a reader of it would. */
KVC_API enum kvc_status kvc_writer_info(const struct kvc_writer *writer, struct kvc_info *ret_info,
                                        struct kvc_error *error);

/* Frees the writer. Unless finish was called and got as far as publishing, nothing is left. */
KVC_API void kvc_writer_free(struct kvc_writer *writer);

/* ---- JSON ---------------------------------------------------------------------------------- */

/* Rewrites one JSON value of any type and spelling in the canonical one, which docs/FORMAT.md
 * defines in section 7: no white space, keys sorted, one spelling for each string and number.
 * KVC_E_JSON, with the byte at fault as the error's offset, for what is no JSON and for what has no
 * canonical spelling: a key that occurs twice, U+0000, an integer beyond 2^53 - 1, nesting deeper
 * than 16, more than `max_values` values. Keys are no values; 0 stands for 2,113,536, the most that
 * a file's metadata can have. Memory is a few times `text_bytes`, and 32 bytes for each member of
 * the objects that are open at one place.
 *
 * `ret_text` is not terminated and belongs to the caller, who gives it to the allocator's
 * `release`, or to free() of the C library when `allocator` is NULL. */
KVC_API enum kvc_status kvc_json_canonical(const char *text, size_t text_bytes, uint64_t max_values,
                                           const struct kvc_allocator *allocator, char **ret_text,
                                           size_t *ret_bytes, struct kvc_error *error);

/* ---- Roots in text ------------------------------------------------------------------------- */

/* Writes `kvc1:` and 64 lower-case hexadecimal digits and a final zero. */
KVC_API void kvc_root_format(const uint8_t root[KVC_DIGEST_BYTES],
                             char ret_text[KVC_ROOT_TEXT_BYTES]);

/* Reads the form above, or the 64 digits alone; upper case is accepted. KVC_E_OPTION otherwise. */
KVC_API enum kvc_status kvc_root_parse(const char *text, uint8_t ret_root[KVC_DIGEST_BYTES]);

#ifdef __cplusplus
}
#endif

#endif
